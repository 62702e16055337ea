"""The routes of /v1/jobs, and what they share with the batches of OpenAI's API."""
