"""The HTTP front end: our routes and OpenAI's, on the same jobs."""
