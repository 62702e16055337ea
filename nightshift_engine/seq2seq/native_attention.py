"""The same attention by our own kernel, on a CPU: nothing is gathered or copied.

To the kernel each token of a step is a sequence that decodes. Over its source it stores nothing, and a source
is stored by a step without sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..execution.attention.interface import LayerCall
from ..execution.attention.native_backend import NativeAttention
from ..execution.kv_memory import KvMemory
from ..execution.step_layout import StepLayout
from .layers import Heads


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
        query, key, value = (each.transpose(0, 1) for each in heads)
        call = LayerCall(scale, None, None, None)
        return self._output.attend(layer, query, key, value, call, out).flatten(1)

    def over_source(self, layer: int, query: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Attend over the source of each sequence."""
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
