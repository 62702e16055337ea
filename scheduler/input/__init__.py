"""A job's input before any row of it runs: surveyed, validated, cut into shards."""
