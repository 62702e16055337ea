"""Models of OpenAI-compatible servers that the operator names, behind shards and online requests."""
