"""The page with very much to show."""
