"""Schedules and their runs: what happens to them, one transaction each."""
