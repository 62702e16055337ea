"""Tenants and their keys, for administrators; and the scopes that every route needs."""
