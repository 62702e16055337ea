"""Shared parts of the examples: a service of their own, tiny models trained for them, checked outputs."""
