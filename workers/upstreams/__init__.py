"""Models of OpenAI-compatible servers that the operator names, behind the worker's shards and online requests."""
