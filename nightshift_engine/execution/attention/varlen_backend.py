"""Paged attention by torch's own `varlen_attn` with block tables, from torch 2.12 on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidConfig
from ..kv_memory import KvMemory
from ..step_layout import StepLayout
from .interface import LayerCall, UnsupportedAttention

BLOCK_SIZE_MULTIPLE = 256
"""Multiple that the kernel behind `varlen_attn` asks of a block (flash_api.cpp, mha_varlen_fwd)."""


def paged_varlen_attn() -> Callable[..., Any] | None:
    """torch's `varlen_attn` if it takes block tables, else None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "block_table" in inspect.signature(varlen_attn).parameters else None


class VarlenAttention:
    """The back end. Raises `InvalidConfig` where torch or the size of a block does not allow it."""

    shares_prefixes = False

    def __init__(self, kv: KvMemory, varlen_attn: Callable[..., Any] | None = None) -> None:
        kernel = varlen_attn or paged_varlen_attn()
        if kernel is None:
            raise InvalidConfig(
                f"attention_backend 'varlen' needs torch 2.12 or newer, this is {torch.__version__}"
            )
        if kv.block_size % BLOCK_SIZE_MULTIPLE:
            raise InvalidConfig(
                f"attention_backend 'varlen' needs a block_size that is a multiple of {BLOCK_SIZE_MULTIPLE}, "
                f"got {kv.block_size}"
            )
        self._kv = kv
        self._varlen_attn = kernel

    def step(self, layout: StepLayout) -> _VarlenStep:
        return _VarlenStep(self._kv, layout, self._varlen_attn)


class _VarlenStep:
    """Attention for one forward pass."""

    def __init__(self, kv: KvMemory, layout: StepLayout, varlen_attn: Callable[..., Any]) -> None:
        self._kv = kv
        self._layout = layout
        self._varlen_attn = varlen_attn
        self._blocks = layout.slot_mapping // kv.block_size
        self._offsets = layout.slot_mapping % kv.block_size

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """The same as `AttentionStep.attend`."""
        if not call.is_plain:
            raise UnsupportedAttention("varlen_attn has neither softcap nor sinks; use another back end")
        layer, layout = self._kv.layers[layer_index], self._layout
        layer.keys[self._blocks, :, self._offsets] = key.transpose(0, 1)
        layer.values[self._blocks, :, self._offsets] = value.transpose(0, 1)
        attended: Tensor = self._varlen_attn(
            query.transpose(0, 1),
            layer.keys.transpose(1, 2),  # [blocks, block_size, kv_heads, dim]
            layer.values.transpose(1, 2),
            layout.cu_seqlens_q,
            None,
            layout.max_query_len,
            layout.max_seq_len,
            scale=call.scale,
            # Its window is what a token sees before itself.
            window_size=(-1 if call.window is None else call.window - 1, 0),
            enable_gqa=query.shape[0] != key.shape[0],
            seqused_k=layout.seq_lens,
            block_table=layout.block_tables,
        )
        return attended.contiguous()
