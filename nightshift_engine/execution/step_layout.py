"""One forward pass as attention sees it: the tokens of all sequences end to end, and where their KV lies."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.batcher import Chunk
from ..core.sequence import Sequence
from .decoder.adapters.rows import AdapterRows, HostAdapterRows, group_rows
from .device.devices import to_device


@dataclass(frozen=True, slots=True)
class StepLayout:
    """S sequences with T new tokens in all. Those with a single new token come first, by length; where a
    back end reads a shared prefix once, those with the same first block lie together, behind the others."""

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
    is_padded: bool = False
    """Whether rows behind the last sequence's belong to none. Sequences of no tokens are there besides."""
    shared_tokens: Tensor | None = None
    """int32 `[S]`: tokens in whole blocks that a sequence shares with the one before it, if both decode. None
    where the back end does not ask."""
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
    """int64: rows whose logits will be sampled, in the order in which the chunks were given, then those that
    score prompts, likewise."""
    promised_rows: Tensor
    """int64: rows whose token is only promised; `input_ids` holds 0 there."""
    promised_sources: Tensor
    """int64: where each of them is among the tokens that the step before sampled."""
    adapted: AdapterRows | None = None
    """The rows that adapters change. None: there are none."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step as arrays on the host: what `StepLayout` and `StepInputs` hold, of all groups of layers."""

    cu_seqlens_q: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]  # [groups, S, blocks_max]
    slot_mapping: NDArray[np.int64]  # [groups, T]
    shared_tokens: NDArray[np.int32] | None  # [groups, S]
    positions: NDArray[np.int64]
    input_ids: NDArray[np.int64]
    logits_rows: NDArray[np.int64]
    promised_rows: NDArray[np.int64]
    promised_sources: NDArray[np.int64]
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    num_scored: int = 0
    """Tokens that score prompts: the last so many of `logits_rows`."""
    adapted: HostAdapterRows | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_chunks(self) -> int:
        """Sequences with several new tokens."""
        return len(self.seq_lens) - self.num_decodes

    def on(self, device: torch.device) -> StepInputs:
        """The step on `device`, in one copy."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if self.shared_tokens is not None:
            arrays["shared_tokens"] = self.shared_tokens
        sizes = (self.num_tokens, self.num_decodes, self.max_query_len, self.max_seq_len)
        inputs = inputs_of(to_device(arrays, device), *sizes)
        return inputs if self.adapted is None else replace(inputs, adapted=self.adapted.on(device))


_ARRAYS = (
    *("cu_seqlens_q", "seq_lens", "block_tables", "slot_mapping", "positions"),
    *("input_ids", "logits_rows", "promised_rows", "promised_sources"),
)


def inputs_of(
    tensors: Mapping[str, Tensor],
    num_tokens: int,
    num_decodes: int,
    max_query_len: int,
    max_seq_len: int,
    *,
    is_padded: bool = False,
) -> StepInputs:
    """The inputs of a step whose arrays, by the names in `HostStep`, are these tensors."""
    shared = tensors.get("shared_tokens", [None] * len(tensors["block_tables"]))
    layout, *others = (
        StepLayout(
            cu_seqlens_q=tensors["cu_seqlens_q"],
            seq_lens=tensors["seq_lens"],
            block_tables=block_tables,
            slot_mapping=slot_mapping,
            positions=tensors["positions"],
            num_tokens=num_tokens,
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            shared_tokens=shared_tokens,
            is_padded=is_padded,
        )
        for block_tables, slot_mapping, shared_tokens in zip(
            tensors["block_tables"], tensors["slot_mapping"], shared, strict=True
        )
    )
    layout = replace(layout, other_groups=tuple(others)) if others else layout
    return StepInputs(
        layout,
        input_ids=tensors["input_ids"],
        logits_rows=tensors["logits_rows"],
        promised_rows=tensors["promised_rows"],
        promised_sources=tensors["promised_sources"],
    )


def lay_out(
    chunks: Seq[Chunk], block_size: int, *, shares_prefixes: bool = False, has_adapters: bool = False
) -> HostStep:
    """The step that computes `chunks`; `shares_prefixes` as `AttentionBackend` says. `has_adapters`: some of
    them may have one.

    Drafted tokens follow the others of their chunk. Where decoding rows read once what they share, each is
    instead a sequence that decodes, with its own's blocks: all KV of a step is written before any is read.
    """
    owners = [chunk.sequence for chunk in chunks]
    counts = _column([chunk.num_tokens for chunk in chunks])
    computed = _column([sequence.num_computed_tokens for sequence in owners])
    drafted: dict[int, list[int]] = {}
    if any(chunk.draft for chunk in chunks):
        if shares_prefixes:
            owners, counts, computed, drafted = _one_by_one(chunks, counts, computed)
        else:
            drafted = {
                place: [row.token for row in chunk.draft] for place, chunk in enumerate(chunks) if chunk.draft
            }
            counts = counts + _column([len(chunk.draft) for chunk in chunks])
    # Decoding sequences first, by length. The order changes only where sequences come, go or begin to decode.
    order = np.lexsort((computed, _prefixes(owners) if shares_prefixes else computed, counts > 1))
    sequences = [owners[index] for index in order.tolist()]
    counts, computed = counts[order], computed[order]
    num_decodes = int((counts == 1).sum())
    seq_lens, ends = computed + counts, np.cumsum(counts)
    max_seq_len = int(seq_lens.max())
    if num_decodes == len(sequences):
        rows, positions = np.arange(num_decodes), computed
    else:
        rows = np.repeat(np.arange(len(sequences)), counts)
        positions = np.arange(int(ends[-1])) + np.repeat(computed - (ends - counts), counts)
    tables = _block_tables(sequences, (max_seq_len - 1) // block_size + 1)
    places, offsets = np.divmod(positions, block_size)
    shared = _shared_tokens(tables, num_decodes, seq_lens, block_size) if shares_prefixes else None
    known = _column([len(sequence.token_ids) for sequence in sequences])
    promised = _column([sequence.num_promised for sequence in sequences])
    is_last = seq_lens >= known + promised  # more where a token is drafted
    sampled_rows = _logits_rows(order, ends, is_last, {} if shares_prefixes else drafted)
    scored_rows = _scored_rows(chunks, order, ends - counts)
    # Only a sequence's last token can be promised, so it is the last one of its chunk.
    awaits = (is_last & (promised > 0)).nonzero()[0]
    return HostStep(
        cu_seqlens_q=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=seq_lens.astype(np.int32),
        block_tables=tables,
        slot_mapping=tables[:, rows, places].astype(np.int64) * block_size + offsets,
        shared_tokens=shared,
        positions=positions,
        input_ids=_token_ids(sequences, computed, known, counts, order, drafted),
        logits_rows=np.concatenate([sampled_rows, scored_rows]) if len(scored_rows) else sampled_rows,
        promised_rows=ends[awaits] - 1,
        promised_sources=_column([sequences[index].promised_row for index in awaits.tolist()]),
        num_decodes=num_decodes,
        max_query_len=int(counts.max()),
        max_seq_len=max_seq_len,
        num_scored=len(scored_rows),
        adapted=group_rows([sequence.adapter_slot for sequence in sequences], counts)
        if has_adapters
        else None,
    )


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


def _one_by_one(
    chunks: Seq[Chunk], counts: NDArray[np.int64], computed: NDArray[np.int64]
) -> tuple[list[Sequence], NDArray[np.int64], NDArray[np.int64], dict[int, list[int]]]:
    """Sequences, numbers of tokens and of those before them, with each drafted token as a sequence after its
    own; and the drafted tokens by their places.
    """
    owners, drafted = list[Sequence](), dict[int, list[int]]()
    for chunk in chunks:
        owners.append(chunk.sequence)
        for row in chunk.draft:
            drafted[len(owners)] = [row.token]
            owners.append(chunk.sequence)
    repeats = _column([1 + len(chunk.draft) for chunk in chunks])
    starts = np.repeat(np.cumsum(repeats) - repeats, repeats)
    ahead = np.arange(len(owners)) - starts  # 0 for what is not drafted
    return owners, np.where(ahead > 0, 1, counts.repeat(repeats)), computed.repeat(repeats) + ahead, drafted


def _prefixes(owners: list[Sequence]) -> NDArray[np.int64]:
    """The first block of each sequence that has it in common with another, else -1."""
    blocks, places, counts = np.unique(
        [sequence.block_row[0] for sequence in owners], return_inverse=True, return_counts=True
    )
    return np.where(counts > 1, blocks, -1)[places]


def _shared_tokens(
    tables: NDArray[np.int32], num_decodes: int, seq_lens: NDArray[np.int64], block_size: int
) -> NDArray[np.int32]:
    """`StepLayout.shared_tokens` of each group: `[groups, S]`."""
    shared = np.zeros((len(tables), len(seq_lens)), dtype=np.int32)
    lengths = seq_lens[:num_decodes]
    whole = np.minimum(lengths[1:], lengths[:-1]) // block_size
    for group, table in enumerate(tables):
        differ = table[1:num_decodes] != table[: max(0, num_decodes - 1)]
        if not differ[:, 0].all():
            alike = np.where(differ.any(axis=1), differ.argmax(axis=1), differ.shape[1])
            shared[group, 1:num_decodes] = np.minimum(alike, whole) * block_size
    return shared


def _token_ids(
    sequences: list[Sequence],
    computed: NDArray[np.int64],
    known: NDArray[np.int64],
    counts: NDArray[np.int64],
    order: NDArray[np.int64],
    drafted: dict[int, list[int]],
) -> NDArray[np.int64]:
    """New tokens end to end, those of decoding sequences first; 0 for one that is promised.

    `drafted` are those at the end that a sequence does not have, by its place before it was put in `order`.
    """
    num_decodes = int((counts == 1).sum())
    token_ids = array("q", bytes(8 * num_decodes))
    is_known = (computed < known)[:num_decodes]
    if is_known.any():  # hardly ever while steps overlap
        places = np.minimum(computed, known - 1)[:num_decodes].tolist()
        decoding = zip(sequences, places, is_known.tolist(), strict=False)
        token_ids = array("q", [s.token_ids[place] if knows else 0 for s, place, knows in decoding])
    for index in range(num_decodes, len(sequences)):
        start, stop = int(computed[index]), int(computed[index] + counts[index])
        token_ids += sequences[index].token_ids[start:stop]
        if own := drafted.get(int(order[index])):
            token_ids.extend(own)
        elif stop > known[index]:  # its last one is promised
            token_ids.append(0)
    if drafted:
        for row, place in enumerate(order[:num_decodes].tolist()):
            if place in drafted:
                [token_ids[row]] = drafted[place]
    return np.frombuffer(token_ids, dtype=np.int64)


def _logits_rows(
    order: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_last: NDArray[np.bool_],
    drafted: dict[int, list[int]],
) -> NDArray[np.int64]:
    """The row of the last token of each chunk that is its sequence's last, and those of its drafted tokens,
    in the order in which chunks were given."""
    given_ends = np.empty_like(ends)
    given_ends[order] = np.where(is_last, ends, 0)
    if not drafted:
        return given_ends[given_ends > 0] - 1
    rows = [
        range(end - 1 - len(drafted.get(place, ())), end)
        for place, end in enumerate(given_ends.tolist())
        if end
    ]
    return _column([row for of_chunk in rows for row in of_chunk])


def _scored_rows(
    chunks: Seq[Chunk], order: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The rows of each chunk that score a prompt, in the order in which chunks were given."""
    scored = [index for index, chunk in enumerate(chunks) if chunk.sequence.num_to_score]
    if not scored:  # hardly ever otherwise
        return _column([])
    given_starts = np.empty_like(starts)
    given_starts[order] = starts
    return np.concatenate([given_starts[index] + np.arange(chunks[index].num_scored) for index in scored])
