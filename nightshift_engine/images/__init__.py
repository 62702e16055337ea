"""Images to the pixels of a model, and its scores and vectors."""
