"""Statements about tenants and what only they have: their keys and secrets."""
