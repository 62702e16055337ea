"""A prompt over each row of a table: what is sent for it, and what comes back as columns."""
