"""One forward pass, as attention sees it: which tokens belong together, and where their KV lies.

The tokens of all sequences lie end to end. Everything is laid out with numpy in one buffer, which goes to the
device in one copy. Decides nothing, and knows no sequence beyond this pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batching.batcher import Chunk
from .device_copies import to_device


@dataclass(frozen=True, slots=True)
class StepLayout:
    """S sequences with T new tokens in all. Those with a single new token come first, by length."""

    cu_seqlens_q: Tensor
    """int32 `[S + 1]`: new tokens of sequence s are rows `cu_seqlens_q[s]` to `cu_seqlens_q[s + 1]`."""
    seq_lens: Tensor
    """int32 `[S]`: tokens of each sequence that its last new token sees, itself included."""
    block_tables: Tensor
    """int32 `[S, blocks_max]`: blocks of each sequence in order; short rows are filled up with block 0."""
    slot_mapping: Tensor
    """int64 `[T]`: where each token's KV goes, as block * block_size + place in the block."""
    positions: Tensor
    """int64 `[T]`: place of each token in its sequence."""
    num_tokens: int
    num_decodes: int
    """Sequences with one new token: the first this many."""
    max_query_len: int
    """Most new tokens of one sequence."""
    max_seq_len: int
    """Largest of `seq_lens`."""

    @property
    def num_sequences(self) -> int:
        return self.seq_lens.shape[0]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model is called with in one step."""

    layout: StepLayout
    input_ids: Tensor
    """int64 `[T]`."""
    logits_rows: Tensor
    """int64: rows whose logits will be sampled, in the order in which the chunks were given."""
    promised_rows: Tensor
    """int64: rows whose token is only promised; `input_ids` holds 0 there."""
    promised_sources: Tensor
    """int64: where each of them is among the tokens that the step before sampled."""


def lay_out(chunks: Seq[Chunk], block_size: int, device: torch.device) -> StepInputs:
    """The step that computes `chunks`, on `device`."""
    arranged = sorted(chunks, key=_decodes_first_by_length)
    counts = np.array([chunk.num_tokens for chunk in arranged], dtype=np.int64)
    computed = np.array([chunk.sequence.num_computed_tokens for chunk in arranged], dtype=np.int64)
    ends = np.cumsum(counts)
    num_tokens = int(ends[-1])
    tables = _block_tables(arranged, int((computed + counts - 1).max()) // block_size + 1)
    positions = np.arange(num_tokens) + np.repeat(computed - (ends - counts), counts)
    blocks = tables[np.repeat(np.arange(len(arranged)), counts), positions // block_size]
    on_device = to_device(
        {
            "cu_seqlens_q": np.concatenate([[0], ends]).astype(np.int32),
            "seq_lens": (computed + counts).astype(np.int32),
            "block_tables": tables,
            "slot_mapping": blocks.astype(np.int64) * block_size + positions % block_size,
            "positions": positions,
            "input_ids": _token_ids(arranged),
            "logits_rows": _logits_rows(chunks, arranged, ends),
            **_promised(arranged, ends),
        },
        device,
    )
    inputs = {name: on_device.pop(name) for name in StepInputs.__slots__ if name != "layout"}
    layout = StepLayout(
        **on_device,
        num_tokens=num_tokens,
        num_decodes=int((counts == 1).sum()),
        max_query_len=int(counts.max()),
        max_seq_len=int((computed + counts).max()),
    )
    return StepInputs(layout, **inputs)


def _decodes_first_by_length(chunk: Chunk) -> tuple[bool, int]:
    return chunk.num_tokens > 1, chunk.sequence.num_computed_tokens


def _block_tables(arranged: list[Chunk], width: int) -> NDArray[np.int32]:
    rows = [chunk.sequence.blocks[:width] for chunk in arranged]
    lengths = np.array([len(row) for row in rows])
    tables = np.zeros((len(rows), width), dtype=np.int32)
    tables[np.arange(width) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), np.int32)
    return tables


def _token_ids(arranged: list[Chunk]) -> NDArray[np.int64]:
    pieces = []
    for chunk in arranged:
        start = chunk.sequence.num_computed_tokens
        pieces.append(chunk.sequence.token_ids[start : start + chunk.num_tokens])
        if len(pieces[-1]) < chunk.num_tokens:
            pieces.append([0])  # the last one is promised
    return np.fromiter(chain.from_iterable(pieces), np.int64)


def _promised(arranged: list[Chunk], ends: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Only a sequence's last token can be promised, so it is the last one of its chunk."""
    promised = [n for n, chunk in enumerate(arranged) if chunk.is_last and chunk.sequence.num_promised]
    sources = [arranged[n].sequence.promised_row for n in promised]
    return {
        "promised_rows": ends[promised] - 1 if promised else np.empty(0, dtype=np.int64),
        "promised_sources": np.array(sources, dtype=np.int64),
    }


def _logits_rows(chunks: Seq[Chunk], arranged: list[Chunk], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    last_rows = {id(chunk): row for chunk, row in zip(arranged, (ends - 1).tolist(), strict=True)}
    return np.array([last_rows[id(chunk)] for chunk in chunks if chunk.is_last], dtype=np.int64)
