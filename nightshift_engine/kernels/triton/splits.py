"""The splits that decoding cuts a sequence's keys into. Plain numbers: memory is planned by them."""

SPLIT_TOKENS_MIN = 256
"""Keys per split: some hundred KB to read, so that starting a program and storing its part cost little.

On an H200, 512 were 3 to 5 % faster for many sequences and half as fast for one of 544 tokens.
"""
SPLITS_MAX = 64
"""Bounds the memory for parts; longer contexts get longer splits."""


def split_tokens(context_length: int) -> int:
    """Keys per split for an engine with this context: a power of two, the same for every step of it."""
    size = SPLIT_TOKENS_MIN
    while size * SPLITS_MAX < context_length:
        size *= 2
    return size


def split_bytes_max(sequences: int, heads: int, value_dim: int) -> int:
    """Memory of the parts of so many sequences at the most: sums, maxima and denominators, float32."""
    return 4 * sequences * heads * SPLITS_MAX * (value_dim + 2)
