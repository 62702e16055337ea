"""Files above the limit of one upload, which arrive in parts: OpenAI's /v1/uploads."""
