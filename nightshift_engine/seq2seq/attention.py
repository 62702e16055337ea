"""The same attention by our own kernel, on a CPU: each token of a step is a sequence that decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..execution.attention.interface import LayerCall
from ..execution.attention.native_backend import NativeAttention
from ..execution.kv_memory import KvMemory
from ..execution.step_layout import StepLayout
from .layers import Heads


@dataclass(frozen=True, slots=True)
class _Visible:
    """The blocks that each token of a step attends over."""

    blocks: Tensor  # [tokens, blocks]; short rows are filled up with block 0
    mask: Tensor  # [tokens, 1 or heads, 1, blocks * block_size], additive


class PagedCrossAttention:
    """Attention of one step, in which every token is a row with blocks of its own."""

    def __init__(
        self,
        kv: KvMemory,
        *,
        source_blocks: Tensor,
        source_lengths: Tensor,
        output_blocks: Tensor,
        positions: Tensor,
        position_bias: Callable[[Tensor], Tensor] | None,
        dtype: torch.dtype,
    ) -> None:
        """Blocks int64 `[tokens, blocks]`; `source_lengths` and `positions` int64 `[tokens]`."""
        self._kv = kv
        size = kv.block_size
        self._store_blocks = output_blocks.gather(1, (positions // size)[:, None])[:, 0]
        self._store_offsets = positions % size
        places = torch.arange(source_blocks.shape[1] * size, device=positions.device)
        source_mask = _additive(places >= source_lengths[:, None], dtype)[:, None, None]
        self._source = _Visible(source_blocks, source_mask)
        places = torch.arange(output_blocks.shape[1] * size, device=positions.device)
        distances = positions[:, None] - places
        output_mask = _additive(distances < 0, dtype)[:, None, None]
        if position_bias is not None:
            bias = position_bias(distances.clamp(min=0))  # [tokens, places, heads]
            output_mask = output_mask + bias.permute(0, 2, 1)[:, :, None].to(dtype)
        self._output = _Visible(output_blocks, output_mask)

    def over_output(self, layer: int, heads: Heads, scale: float, out: Tensor | None = None) -> Tensor:
        store(self._kv, layer, self._store_blocks, self._store_offsets, heads.key, heads.value)
        return self._attend(layer, heads.query, self._output, scale, out)

    def over_source(self, layer: int, query: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Attends over the source of each sequence."""
        return self._attend(layer, query, self._source, scale, out)

    def _attend(
        self, layer: int, query: Tensor, visible: _Visible, scale: float, out: Tensor | None
    ) -> Tensor:
        memory = self._kv.layers[layer]
        keys, values = (_gather(pages, visible.blocks, query.dtype) for pages in (memory.keys, memory.values))
        attended = F.scaled_dot_product_attention(
            query[:, :, None], keys, values, attn_mask=visible.mask, scale=scale
        ).flatten(1)
        return attended if out is None else out.copy_(attended)


def store(kv: KvMemory, layer: int, blocks: Tensor, offsets: Tensor, key: Tensor, value: Tensor) -> None:
    """Writes keys and values `[tokens, heads, dim]` to their blocks, at their places in these."""
    memory = kv.layers[layer]
    memory.keys[blocks, :, offsets] = key.to(memory.keys.dtype)
    memory.values[blocks, :, offsets] = value.to(memory.values.dtype)


def _gather(memory: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """`[blocks, heads, block_size, dim]` at `[tokens, blocks]`: `[tokens, heads, places, dim]`."""
    _, num_heads, size, dim = memory.shape
    heads = torch.arange(num_heads, device=blocks.device)[None, :, None]
    rows = blocks[:, None] * num_heads + heads
    return F.embedding(rows, memory.view(-1, size * dim)).view(len(blocks), num_heads, -1, dim).to(dtype)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


class NativeCrossAttention:
    """Attention over one memory; `step` lays out the next step. Without position bias."""

    def __init__(self, kv: KvMemory) -> None:
        self._output, self._source, self._stored = (NativeAttention(kv) for _ in range(3))
        self._block_size = kv.block_size

    def step(
        self, *, source_blocks: Tensor, source_lengths: Tensor, output_blocks: Tensor, positions: Tensor
    ) -> NativeCrossAttention:
        """Blocks int64 `[tokens, blocks]`; `source_lengths` and `positions` int64 `[tokens]`."""
        size = self._block_size
        blocks = output_blocks.gather(1, (positions // size)[:, None])[:, 0]
        self._output.step(_layout(output_blocks, positions + 1, blocks * size + positions % size))
        self._source.step(_layout(source_blocks, source_lengths, positions[:0]))
        return self

    def over_output(self, layer: int, heads: Heads, scale: float, out: Tensor | None = None) -> Tensor:
        query, key, value = (tensor.transpose(0, 1) for tensor in heads)
        call = LayerCall(scale, None, None, None)
        return self._output.attend(layer, query, key, value, call, out).flatten(1)

    def over_source(self, layer: int, query: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Attends over the source of each sequence."""
        query = query.transpose(0, 1)
        none = query[:, :0]
        return self._source.attend(layer, query, none, none, LayerCall(scale, None, None, None), out).flatten(
            1
        )

    def begin_sources(self, blocks: Tensor, offsets: Tensor) -> None:
        """`[tokens]` each: where `store` will put them."""
        none = blocks[:0]
        self._stored.step(_layout(none[:, None], none, blocks * self._block_size + offsets))

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """`[tokens, heads, dim]` each."""
        key, value = key.transpose(0, 1), value.transpose(0, 1)
        self._stored.attend(layer, key[:, :0], key, value, LayerCall(1.0, None, None, None))


def _layout(blocks: Tensor, lengths: Tensor, slots: Tensor) -> StepLayout:
    """A sequence for each row of `blocks`. With no slots, nothing is stored."""
    rows = len(blocks)
    return StepLayout(
        cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32),
        seq_lens=lengths.int(),
        block_tables=blocks.int(),
        slot_mapping=slots,
        positions=lengths - 1,
        num_tokens=len(slots),
        num_decodes=rows,
        max_query_len=1,
        max_seq_len=int(lengths.max()) if rows else 0,
    )
