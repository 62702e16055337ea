"""What the examples share: a service of their own, tiny models trained for them, outputs that are checked."""
