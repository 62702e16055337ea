"""Statements about webhook endpoints and what is owed to receivers."""
