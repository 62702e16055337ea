"""Engines of others behind the queue."""
