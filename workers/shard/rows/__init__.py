"""A shard's rows on their way to the engine: read ahead, tokenised, or given the result of another row."""
