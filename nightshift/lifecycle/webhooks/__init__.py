"""Webhooks: who is owed an event, what tenants do with their endpoints, and replays."""
