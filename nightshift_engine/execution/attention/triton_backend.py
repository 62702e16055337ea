"""Paged attention by our Triton kernels, for CUDA; on a CPU under Triton's interpreter, for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.triton.decode import SplitParts, attend_decodes
from ...kernels.triton.kv_write import write_kv
from ...kernels.triton.launch import PagedKv
from ...kernels.triton.prefill import attend_chunks
from ...kernels.triton.splits import split_tokens
from ..kv_memory import KvMemory, LayerKv
from ..step_layout import StepLayout
from .interface import LayerCall


class TritonAttention:
    """The back end: one memory, and the buffers that its kernels share between layers and steps."""

    shares_prefixes = True

    def __init__(self, kv: KvMemory, context_length: int) -> None:
        self._kv = kv
        self._split_size = split_tokens(context_length)
        # Room for the longest context from the start: with other strides the kernels would be compiled again.
        self._num_splits = -(-context_length // self._split_size)
        self._parts: dict[tuple[int, int], SplitParts] = {}
        self._outgrown: list[SplitParts] = []  # a CUDA graph may still write to them

    def step(self, layout: StepLayout) -> _TritonStep:
        return _TritonStep(self, layout)

    def write(self, layer_index: int, key: Tensor, value: Tensor, layout: StepLayout) -> PagedKv:
        """Stores `[kv_heads, tokens, dim]` each; returns the memory they are in."""
        memory = _paged(self._kv.layers[layer_index])
        write_kv(key.transpose(0, 1), value.transpose(0, 1), memory, layout.slot_mapping)
        return memory

    def decode(
        self, query: Tensor, memory: PagedKv, out: Tensor, layout: StepLayout, call: LayerCall
    ) -> None:
        """`[sequences, heads, dim]`, for the sequences that decode."""
        count = layout.num_decodes
        attend_decodes(
            query,
            memory,
            out,
            seqused_k=layout.seq_lens[:count],
            max_seqlen_k=layout.max_seq_len,
            block_table=layout.block_tables[:count],
            softmax_scale=call.scale,
            split_size=self._split_size,
            parts=self._parts_for(count, out),
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
            shared_tokens=None if layout.shared_tokens is None else layout.shared_tokens[:count],
        )

    def _parts_for(self, sequences: int, out: Tensor) -> SplitParts:
        """Buffers for the parts of a step, kept for the next; one per head shape, as layers may differ."""
        _, heads, value_dim = out.shape
        kept = self._parts.get((heads, value_dim))
        if kept is None or kept.sums.shape[0] < sequences:
            if kept is not None:
                self._outgrown.append(kept)
            kept = SplitParts.allocate(sequences, heads, self._num_splits, value_dim, out.device)
            self._parts[heads, value_dim] = kept
        return kept


class _TritonStep:
    """Attention for one forward pass."""

    def __init__(self, attention: TritonAttention, layout: StepLayout) -> None:
        self._attention = attention
        self._layout = layout

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """The same as `AttentionStep.attend`."""
        layout, count = self._layout, self._layout.num_decodes
        memory = self._attention.write(layer_index, key, value, layout)
        query = query.transpose(0, 1)  # [tokens, heads, dim]
        shape = (query.shape[0], query.shape[1], value.shape[2])
        make = torch.zeros if layout.is_padded else torch.empty  # no kernel writes rows that are not there
        out = make(shape, dtype=query.dtype, device=query.device)
        if count:
            self._attention.decode(query[:count], memory, out[:count], layout, call)
        if layout.num_sequences > count:
            attend_chunks(
                query,
                memory,
                out,
                cu_seqlens_q=layout.cu_seqlens_q[count:],
                seqused_k=layout.seq_lens[count:],
                block_table=layout.block_tables[count:],
                softmax_scale=call.scale,
                window=call.window,
                softcap=call.softcap,
                sinks=call.sinks,
            )
        return out


def _paged(layer: LayerKv) -> PagedKv:
    return PagedKv(layer.keys, layer.values, layer.key_scales, layer.value_scales)
