"""A job's output: manifests while it runs, and at its end OpenAI files or the last parts."""
