"""Paged attention in plain torch, the reference for other back ends: gathers the blocks, then attends."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kv_memory import KvMemory, KvShape, LayerKv
from ..step_layout import StepLayout
from .interface import LayerCall

PADDING_RATIO_MAX = 0.25
"""Share of a row's gathered blocks that may be padding, beyond the one block granted to every row."""


class TorchAttention:
    """The back end: one memory, a new step per forward pass."""

    shares_prefixes = False

    def __init__(self, kv: KvMemory) -> None:
        self._kv = kv

    def step(self, layout: StepLayout) -> _TorchStep:
        block_size = self._kv.block_size
        num_decodes = layout.num_decodes
        seq_lens, starts = layout.seq_lens.tolist(), layout.cu_seqlens_q.tolist()
        block_counts = [-(-length // block_size) for length in seq_lens[:num_decodes]]
        tables = layout.block_tables.long()
        return _TorchStep(
            kv=self._kv,
            slots=layout.slot_mapping,
            decode_groups=[
                _DecodeGroup(
                    run.start,
                    run.stop,
                    tables=tables[run, : block_counts[run.stop - 1]],
                    lengths=layout.seq_lens[run].long(),
                )
                for run in similar_lengths(block_counts)
            ],
            prefill_chunks=[
                _PrefillChunk(
                    start=starts[row],
                    stop=starts[row + 1],
                    first_position=seq_lens[row] - (starts[row + 1] - starts[row]),
                    table=tables[row],
                )
                for row in range(num_decodes, len(seq_lens))
            ],
        )


def similar_lengths(block_counts: Seq[int]) -> list[slice]:
    """Cuts ascending block counts into runs whose shortest is nearly as long as their longest."""
    runs: list[slice] = []
    stop = len(block_counts)
    for index in range(len(block_counts) - 1, -1, -1):
        if block_counts[index] + 1 < block_counts[stop - 1] * (1 - PADDING_RATIO_MAX):
            runs.append(slice(index + 1, stop))
            stop = index + 1
    if block_counts:
        runs.append(slice(0, stop))
    return runs


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one new token each and tables of similar length; rows [start, stop) of the step."""

    start: int
    stop: int
    tables: Tensor  # [sequences, blocks]; short rows are padded with any valid block
    lengths: Tensor  # [sequences], tokens visible including the new one


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """New tokens of one sequence; rows [start, stop) of the step, at `first_position` in the sequence."""

    start: int
    stop: int
    first_position: int
    table: Tensor  # [blocks]


@dataclass(slots=True)
class _TorchStep:
    """The KV slots of a forward pass. Tensors derived from them are made once for all layers."""

    kv: KvMemory
    slots: Tensor  # [tokens], where each token's KV is written
    decode_groups: list[_DecodeGroup]
    prefill_chunks: list[_PrefillChunk]
    _write_rows: dict[int, Tensor] = field(default_factory=dict)
    _decode_views: dict[tuple[int, int | None, int], _DecodeView] = field(default_factory=dict)
    _prefill_views: dict[tuple[int, int | None, int], _PrefillView] = field(default_factory=dict)

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Stores this step's keys and values, then attends over all that each sequence has."""
        layer, shape = self.kv.layers[layer_index], self.kv.shapes[layer_index]
        self._write(layer, shape, key, value)
        num_heads, num_tokens, _ = query.shape
        out = torch.empty(num_tokens, num_heads, shape.value_dim, dtype=value.dtype, device=value.device)
        for index, group in enumerate(self.decode_groups):
            view = self._decode_view(index, call.window, shape.num_heads, query.dtype)
            out[group.start : group.stop] = _decode(query[:, group.start : group.stop], layer, view, call)
        for index, chunk in enumerate(self.prefill_chunks):
            rows = slice(chunk.start, chunk.stop)
            if _is_fresh(chunk, call) and self.kv.dtype == key.dtype:
                attended = _prefill_fresh(query[:, rows], key[:, rows], value[:, rows], call)
            else:
                prefill_view = self._prefill_view(index, call.window, shape.num_heads, query.dtype)
                attended = _prefill(query[:, rows], layer, prefill_view, call)
            out[rows] = attended.transpose(0, 1)
        return out

    def _write(self, layer: LayerKv, shape: KvShape, key: Tensor, value: Tensor) -> None:
        rows = self._write_rows.get(shape.num_heads)
        if rows is None:
            block_size = self.kv.block_size
            heads = torch.arange(shape.num_heads, device=self.slots.device)[:, None]
            blocks, offsets = self.slots // block_size, self.slots % block_size
            rows = ((blocks * shape.num_heads + heads) * block_size + offsets).flatten()
            self._write_rows[shape.num_heads] = rows  # [kv_heads * tokens]
        _store(layer.keys, layer.key_scales, rows, key.reshape(-1, shape.key_dim))
        _store(layer.values, layer.value_scales, rows, value.reshape(-1, shape.value_dim))

    def _decode_view(self, index: int, window: int | None, num_heads: int, dtype: torch.dtype) -> _DecodeView:
        cache_key = (index, window, num_heads)
        view = self._decode_views.get(cache_key)
        if view is None:
            view = _DecodeView.of_group(
                self.decode_groups[index], window, num_heads, self.kv.block_size, dtype
            )
            self._decode_views[cache_key] = view
        return view

    def _prefill_view(
        self, index: int, window: int | None, num_heads: int, dtype: torch.dtype
    ) -> _PrefillView:
        cache_key = (index, window, num_heads)
        view = self._prefill_views.get(cache_key)
        if view is None:
            view = _PrefillView.of_chunk(
                self.prefill_chunks[index], window, num_heads, self.kv.block_size, dtype
            )
            self._prefill_views[cache_key] = view
        return view


@dataclass(frozen=True, slots=True)
class _DecodeView:
    """The part of KV memory a decode group sees through one window, as rows to gather and a mask."""

    rows: (
        Tensor  # [sequences, kv_heads, blocks], rows of memory seen as [blocks * kv_heads, block_size * dim]
    )
    mask: Tensor  # [sequences, 1, 1, blocks * block_size], additive

    @classmethod
    def of_group(
        cls, group: _DecodeGroup, window: int | None, num_heads: int, block_size: int, dtype: torch.dtype
    ) -> _DecodeView:
        tables, lengths = group.tables, group.lengths[:, None]  # [sequences, blocks], [sequences, 1]
        num_blocks = tables.shape[1]
        columns = torch.arange(num_blocks, device=tables.device)[None]
        first_visible = torch.zeros_like(lengths)
        if window is not None and window < num_blocks * block_size:
            first_visible = (lengths - window).clamp_(min=0)
            # A window of w tokens touches at most this many blocks, wherever it starts.
            touched = min(num_blocks, (window + block_size - 2) // block_size + 1)
            columns = first_visible // block_size + torch.arange(touched, device=tables.device)
            tables = tables.gather(1, columns.clamp(max=num_blocks - 1))
        positions = columns[:, :, None] * block_size + torch.arange(block_size, device=tables.device)
        positions = positions.expand(tables.shape[0], -1, -1).flatten(1)  # [sequences, tokens]
        hidden = (positions >= lengths) | (positions < first_visible)
        heads = torch.arange(num_heads, device=tables.device)[None, :, None]
        return cls(tables[:, None] * num_heads + heads, _additive(hidden, dtype)[:, None, None])


@dataclass(frozen=True, slots=True)
class _PrefillView:
    """The part of KV memory a prefill chunk sees through one window."""

    rows: Tensor  # [1, kv_heads, blocks]
    mask: Tensor  # [new tokens, blocks * block_size], additive

    @classmethod
    def of_chunk(
        cls, chunk: _PrefillChunk, window: int | None, num_heads: int, block_size: int, dtype: torch.dtype
    ) -> _PrefillView:
        device = chunk.table.device
        num_new = chunk.stop - chunk.start
        first_visible = 0 if window is None else max(0, chunk.first_position - window + 1)
        first_block = first_visible // block_size
        last_block = (chunk.first_position + num_new - 1) // block_size
        table = chunk.table[first_block : last_block + 1]
        queries = torch.arange(chunk.first_position, chunk.first_position + num_new, device=device)[:, None]
        keys = torch.arange(first_block * block_size, (last_block + 1) * block_size, device=device)[None]
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        heads = torch.arange(num_heads, device=device)[:, None]
        return cls((table * num_heads + heads)[None], _additive(hidden, dtype))


def _decode(query: Tensor, layer: LayerKv, view: _DecodeView, call: LayerCall) -> Tensor:
    """One new token per sequence: `[heads, sequences, dim]` to `[sequences, heads, value_dim]`."""
    num_heads, num_sequences, key_dim = query.shape
    kv_heads = layer.keys.shape[1]
    keys = _gather(layer.keys, layer.key_scales, view.rows, query.dtype)
    values = _gather(layer.values, layer.value_scales, view.rows, query.dtype)
    # Query heads that share a KV head become rows of one small matrix, so keys are not repeated.
    folded = query.transpose(0, 1).reshape(num_sequences, kv_heads, num_heads // kv_heads, key_dim)
    attended = _attend(folded, keys, values, view.mask, call)
    return attended.reshape(num_sequences, num_heads, -1)


def _prefill(query: Tensor, layer: LayerKv, view: _PrefillView, call: LayerCall) -> Tensor:
    """A chunk that looks back into KV memory: `[heads, tokens, dim]` to `[heads, tokens, value_dim]`."""
    num_heads, num_tokens, key_dim = query.shape
    kv_heads = layer.keys.shape[1]
    groups = num_heads // kv_heads
    keys = _gather(layer.keys, layer.key_scales, view.rows, query.dtype)
    values = _gather(layer.values, layer.value_scales, view.rows, query.dtype)
    folded = query.reshape(1, kv_heads, groups * num_tokens, key_dim)
    attended = _attend(folded, keys, values, view.mask.repeat(groups, 1), call)
    return attended.reshape(num_heads, num_tokens, -1)


def _is_fresh(chunk: _PrefillChunk, call: LayerCall) -> bool:
    """Starts its sequence and fits the window: plain causal attention over its own tokens."""
    num_new = chunk.stop - chunk.start
    return chunk.first_position == 0 and call.is_plain and (call.window is None or num_new <= call.window)


def _prefill_fresh(query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
    """`[heads, tokens, dim]` to `[heads, tokens, value_dim]`, without touching KV memory."""
    grouped = query.shape[0] != key.shape[0]
    return F.scaled_dot_product_attention(
        query[None], key[None], value[None], is_causal=True, scale=call.scale, enable_gqa=grouped
    )[0]


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, call: LayerCall) -> Tensor:
    """`[batch, kv_heads, rows, dim]` over `[batch, kv_heads, tokens, dim]`; heads of one group are rows."""
    if call.is_plain:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=call.scale)
    scores = torch.matmul(query, keys.transpose(2, 3)) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores + mask
    if call.sinks is None:
        return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype), values)
    batch, kv_heads, num_rows, _ = scores.shape
    rows_per_head = kv_heads * num_rows // call.sinks.numel()
    sinks = call.sinks.to(scores.dtype).repeat_interleave(rows_per_head).view(1, kv_heads, num_rows, 1)
    scores = torch.cat([scores, sinks.expand(batch, -1, -1, -1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)


def _store(memory: Tensor, scales: Tensor | None, rows: Tensor, vectors: Tensor) -> None:
    """Writes `vectors` to `rows` of one layer's memory, seen as `[places, dim]`."""
    if scales is not None:
        vectors, units = quantize_kv_rows(vectors)
        scales.view(-1).index_copy_(0, rows, units)
    memory.view(-1, memory.shape[3]).index_copy_(0, rows, vectors.to(memory.dtype))


def quantize_kv_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """`[rows, dim]` as int8, and per row what one unit is worth. NaN in a row makes its unit NaN."""
    largest = vectors.abs().amax(dim=1).float()
    steps = (vectors.float() * (127.0 / largest.clamp_min(1e-30))[:, None]).round_()
    return steps.nan_to_num_().to(torch.int8), largest / 127.0


def _gather(memory: Tensor, scales: Tensor | None, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory of one layer at rows `[batch, kv_heads, blocks]`: `[batch, kv_heads, tokens, dim]`."""
    batch, kv_heads, _ = rows.shape
    block_size, dim = memory.shape[2:]
    lines = memory.view(-1, block_size * dim)
    if scales is None:
        return F.embedding(rows, lines).view(batch, kv_heads, -1, dim).to(dtype)
    steps = lines[rows].view(batch, kv_heads, -1, dim)
    units = F.embedding(rows, scales.view(-1, block_size)).view(batch, kv_heads, -1, 1)
    return (steps * units).to(dtype)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
