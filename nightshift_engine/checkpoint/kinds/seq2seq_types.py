"""The encoder-decoders of text that are served, by `model_type` of config.json."""

POST_NORM = ("bart", "marian")
PRE_NORM = ("mbart", "pegasus", "m2m_100")
T5_TYPES = ("t5", "mt5")
SINUSOIDAL_TYPES = ("marian", "pegasus")
"""Whose table of positions is computed, though it is a weight."""
MODEL_TYPES = (*T5_TYPES, *POST_NORM, *PRE_NORM)
