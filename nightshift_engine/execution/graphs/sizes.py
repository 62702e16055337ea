"""The sizes of steps that are recorded as graphs, and the memory that the recordings take."""

from __future__ import annotations

from dataclasses import dataclass

from ..step_layout import HostStep

GRAPH_BYTES = 4 << 20
"""Memory of a graph's nodes on the device: an estimate, on the large side, of some hundred kernels."""
TOKENS_MIN = 64
"""Fewer tokens beside a chunk take as long: the step reads the weights."""
CHUNKS_MIN = 16
DECODES_MIN = 16


@dataclass(frozen=True, slots=True, order=True)
class StepSize:
    """The room of a recorded step. A step is filled up to it; the smallest that holds it comes first."""

    tokens: int
    chunks: int
    """Sequences with several new tokens."""
    decodes: int
    """Sequences with one."""
    logits: int
    """Rows of logits."""

    @property
    def sequences(self) -> int:
        return self.decodes + self.chunks

    def holds(self, step: HostStep) -> bool:
        return (
            step.num_tokens <= self.tokens
            and step.num_chunks <= self.chunks
            and step.num_decodes <= self.decodes
            and len(step.logits_rows) <= self.logits
        )


def step_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepSize]:
    """Sizes to record, ascending: between them they hold every step within these limits."""
    rows_max = min(max_num_seqs, max_num_batched_tokens)
    decoding = [StepSize(size, 0, size, size) for size in decode_sizes(rows_max)]
    mixed = {
        StepSize(
            tokens, _chunks(tokens, max_num_seqs, max_num_batched_tokens), decodes, min(tokens, rows_max)
        )
        for tokens in token_counts(max_num_batched_tokens)
        for decodes in (min(tokens, count) for count in decode_counts(rows_max))
    }
    return sorted([*decoding, *mixed])


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Ascending batch sizes of steps that only decode, the last of which holds `max_num_seqs`."""
    sizes = [1, 2, 4, *range(8, 257, 8)]
    while sizes[-1] < max_num_seqs:
        sizes.append(sizes[-1] + 16)
    return [size for n, size in enumerate(sizes) if n == 0 or sizes[n - 1] < max_num_seqs]


def token_counts(max_num_batched_tokens: int) -> list[int]:
    """Ascending tokens of steps with chunks. From 256 on, none is filled up by more than a quarter."""
    counts = [TOKENS_MIN]
    while counts[-1] < max_num_batched_tokens:
        counts.append(counts[-1] + max(TOKENS_MIN, 1 << (counts[-1].bit_length() - 3)))
    return [*counts[:-1], max_num_batched_tokens]


def decode_counts(max_num_seqs: int) -> list[int]:
    """Ascending room for sequences that decode beside chunks.

    The fewer there are, the more programs share one's keys, so none may be far too large.
    """
    counts = [DECODES_MIN]
    while counts[-1] < max_num_seqs:
        counts.append(4 * counts[-1])
    return [*counts[:-1], max_num_seqs]


def graph_bytes(max_num_seqs: int, max_num_batched_tokens: int, vocab_size: int) -> int:
    """Memory of all recordings besides activations, which are those of a step (`largest_step_bytes`).

    The logits that are handed out, float32, and the graphs themselves.
    """
    sizes = step_sizes(max_num_seqs, max_num_batched_tokens)
    return 4 * vocab_size * max(size.logits for size in sizes) + GRAPH_BYTES * len(sizes)


def _chunks(tokens: int, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Room for sequences with chunks: each costs programs that have nothing to do if it is not there.

    Chunks of 16 tokens fit; more that are smaller take the next size, and the largest has room for all.
    """
    most = max(1, min(max_num_seqs, tokens // 2))
    return most if tokens == max_num_batched_tokens else min(most, max(CHUNKS_MIN, tokens // 16))
