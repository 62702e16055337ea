"""One forward pass as attention sees it: the tokens of all sequences end to end, and where their KV lies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.batcher import Chunk
from ..core.sequence import Sequence
from .device.devices import to_device


@dataclass(frozen=True, slots=True)
class StepLayout:
    """S sequences with T new tokens in all. Those with a single new token come first, by length."""

    cu_seqlens_q: Tensor
    """int32 `[S + 1]`: new tokens of sequence s are rows `cu_seqlens_q[s]` to `cu_seqlens_q[s + 1]`."""
    seq_lens: Tensor
    """int32 `[S]`: tokens of each sequence that its last new token sees, itself included."""
    block_tables: Tensor
    """int32 `[S, blocks_max]`: blocks of each sequence in order; short rows are filled up with block 0, and
    those that were given back are the first that is held."""
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
    other_groups: tuple[StepLayout, ...] = ()
    """The same step for the groups of layers after the first: their blocks are others (`KvGroups`)."""

    @property
    def by_group(self) -> tuple[StepLayout, ...]:
        return (self, *self.other_groups)

    @property
    def num_sequences(self) -> int:
        return self.seq_lens.shape[0]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The arguments of a model in one step."""

    layout: StepLayout
    input_ids: Tensor
    """int64 `[T]`."""
    logits_rows: Tensor
    """int64: rows whose logits will be sampled, in the order in which the chunks were given, ascending."""
    promised_rows: Tensor
    """int64: rows whose token is only promised; `input_ids` holds 0 there."""
    promised_sources: Tensor
    """int64: where each of them is among the tokens that the step before sampled."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step before it is on a device: the arrays of its inputs by name, and the numbers of its layout."""

    arrays: dict[str, NDArray[Any]]
    num_tokens: int
    num_decodes: int
    max_query_len: int
    max_seq_len: int


def lay_out(chunks: Seq[Chunk], block_size: int, device: torch.device) -> StepInputs:
    """The step that computes `chunks`, on `device`."""
    return place(arrange(chunks, block_size), device)


def arrange(chunks: Seq[Chunk], block_size: int) -> HostStep:
    """The step that computes `chunks`."""
    counts = _column([chunk.num_tokens for chunk in chunks])
    computed = _column([chunk.sequence.num_computed_tokens for chunk in chunks])
    # Decoding sequences first, by length. The order changes only where sequences come, go or begin to decode.
    order = np.lexsort((computed, counts > 1))
    sequences = [chunks[index].sequence for index in order.tolist()]
    counts, computed = counts[order], computed[order]
    seq_lens, ends = computed + counts, np.cumsum(counts)
    num_tokens = int(ends[-1])
    rows = np.repeat(np.arange(len(sequences)), counts)
    positions = np.arange(num_tokens) + np.repeat(computed - (ends - counts), counts)
    tables = _block_tables(sequences, int(seq_lens.max() - 1) // block_size + 1)
    places, offsets = np.divmod(positions, block_size)
    slots = [table[rows, places].astype(np.int64) * block_size + offsets for table in tables]
    known = _column([len(sequence.token_ids) for sequence in sequences])
    promised = _column([sequence.num_promised for sequence in sequences])
    is_last = seq_lens == known + promised
    # Only a sequence's last token can be promised, so it is the last one of its chunk.
    awaits = (is_last & (promised > 0)).nonzero()[0]
    return HostStep(
        {
            "cu_seqlens_q": np.concatenate([[0], ends]).astype(np.int32),
            "seq_lens": seq_lens.astype(np.int32),
            **{f"block_tables {group}": table for group, table in enumerate(tables)},
            **{f"slot_mapping {group}": of_group for group, of_group in enumerate(slots)},
            "positions": positions,
            "input_ids": _token_ids(sequences, computed, known, counts),
            "logits_rows": _logits_rows(order, ends, is_last),
            "promised_rows": ends[awaits] - 1,
            "promised_sources": _column([sequences[index].promised_row for index in awaits.tolist()]),
        },
        num_tokens=num_tokens,
        num_decodes=int((counts == 1).sum()),
        max_query_len=int(counts.max()),
        max_seq_len=int(seq_lens.max()),
    )


def place(step: HostStep, device: torch.device) -> StepInputs:
    """The step on `device`, by one copy."""
    on_device = to_device(step.arrays, device)
    num_groups = sum(name.startswith("block_tables") for name in step.arrays)
    inputs = {name: on_device.pop(name) for name in StepInputs.__slots__ if name != "layout"}
    by_group = [
        (on_device.pop(f"block_tables {group}"), on_device.pop(f"slot_mapping {group}"))
        for group in range(num_groups)
    ]
    layout = StepLayout(
        cu_seqlens_q=on_device["cu_seqlens_q"],
        seq_lens=on_device["seq_lens"],
        block_tables=by_group[0][0],
        slot_mapping=by_group[0][1],
        positions=on_device["positions"],
        num_tokens=step.num_tokens,
        num_decodes=step.num_decodes,
        max_query_len=step.max_query_len,
        max_seq_len=step.max_seq_len,
    )
    if len(by_group) > 1:
        others = (replace(layout, block_tables=t, slot_mapping=slots) for t, slots in by_group[1:])
        layout = replace(layout, other_groups=tuple(others))
    return StepInputs(layout, **inputs)


def _column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _block_tables(sequences: list[Sequence], width: int) -> NDArray[np.int32]:
    """`[groups, S, width]`. Every sequence keeps rows of its own, which change with its blocks: here they are
    only copied."""
    if min(len(sequence.block_row) for sequence in sequences) < width:
        for sequence in sequences:
            sequence.widen_block_rows(width)
    num_groups = len(sequences[0].tables)
    if num_groups == 1:
        return np.concatenate([sequence.block_row[:width] for sequence in sequences]).reshape(1, -1, width)
    rows = np.concatenate([sequence.block_rows[:, :width] for sequence in sequences])
    return np.ascontiguousarray(rows.reshape(-1, num_groups, width).transpose(1, 0, 2))


def _token_ids(
    sequences: list[Sequence],
    computed: NDArray[np.int64],
    known: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """New tokens end to end, those of decoding sequences first; 0 for one that is promised."""
    num_decodes = int((counts == 1).sum())
    places = np.minimum(computed, known - 1)[:num_decodes].tolist()
    token_ids = array("q", [s.token_ids[place] for s, place in zip(sequences, places, strict=False)])
    for index in (computed >= known)[:num_decodes].nonzero()[0].tolist():
        token_ids[index] = 0
    for index in range(num_decodes, len(sequences)):
        start, stop = int(computed[index]), int(computed[index] + counts[index])
        token_ids += sequences[index].token_ids[start:stop]
        if stop > known[index]:  # its last one is promised
            token_ids.append(0)
    return np.frombuffer(token_ids, dtype=np.int64)


def _logits_rows(
    order: NDArray[np.int64], ends: NDArray[np.int64], is_last: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The last row of each chunk that is its sequence's last, in the order in which chunks were given."""
    given_ends = np.empty_like(ends)
    given_ends[order] = np.where(is_last, ends, 0)
    return given_ends[given_ends > 0] - 1
