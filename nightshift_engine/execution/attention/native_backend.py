"""Paged attention by our own C++ kernel: no gather, no copies, the same bits however a step is put together.

`kernels/native/attention/attention.cpp` says what it guarantees. Needs a C++ compiler once per machine.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke
from ..kv_memory import KvMemory
from ..step_layout import StepLayout
from .interface import LayerCall

ELEMENT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}


class _Step(ctypes.Structure):
    """`AttentionStep` of the kernel, field by field."""

    _fields_ = (
        *((name, c_void_p) for name in ("query_starts", "seq_lens", "block_tables", "slots")),
        ("table_stride", c_int64),
        *((name, c_int32) for name in ("num_sequences", "num_tokens", "num_threads")),
    )


class _Call(ctypes.Structure):
    """`AttentionCall` of the kernel, field by field."""

    _fields_ = (
        ("step", c_void_p),
        *((name, c_void_p) for name in ("query", "key", "value", "out", "key_memory", "value_memory")),
        *((name, c_void_p) for name in ("key_scales", "value_scales", "sinks")),
        *((name, c_int64) for name in ("query_head_stride", "query_token_stride")),
        *((name, c_int64) for name in ("key_head_stride", "key_token_stride")),
        *((name, c_int64) for name in ("value_head_stride", "value_token_stride")),
        ("out_token_stride", c_int64),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "key_dim", "value_dim", "block_size")),
        *((name, c_int32) for name in ("window", "input_type", "memory_type")),
        *((name, c_float) for name in ("scale", "softcap")),
    )


def native_kernels() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built."""
    return load_kernels("attention", FIXED_ORDER)


def native_attention_computes(dtype: torch.dtype, kv_dtype: torch.dtype) -> bool:
    """Whether the kernel can be had here and knows both types."""
    library = native_kernels()
    if library is None or dtype not in ELEMENT_TYPES or kv_dtype not in ELEMENT_TYPES:
        return False
    return all(library.supports(ELEMENT_TYPES[element]) for element in (dtype, kv_dtype))


class NativeAttention:
    """The back end: one memory, and the call that a step's layers share. Asserts that the kernel is there."""

    shares_prefixes = False

    def __init__(self, kv: KvMemory) -> None:
        library = native_kernels()
        assert library is not None, "the native attention kernel is not available"
        assert kv.transposed_keys, "the native attention kernel wants transposed keys"
        self._attention = library.paged_attention
        self._kv = kv
        self._layout: StepLayout | None = None
        self._step = _Step()  # stays where it is: calls written down point to it
        self._call = _Call(
            step=ctypes.addressof(self._step),
            block_size=kv.block_size,
            memory_type=ELEMENT_TYPES[kv.dtype],
        )

    def step(self, layout: StepLayout) -> NativeAttention:
        self._layout = layout  # keeps alive what the pointers point to
        step = self._step
        step.query_starts, step.seq_lens = layout.cu_seqlens_q.data_ptr(), layout.seq_lens.data_ptr()
        step.block_tables, step.table_stride = layout.block_tables.data_ptr(), layout.block_tables.stride(0)
        step.slots = layout.slot_mapping.data_ptr()
        step.num_sequences, step.num_tokens = layout.num_sequences, layout.num_tokens
        step.num_threads = torch.get_num_threads()
        return self

    def attend(
        self,
        layer_index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: LayerCall,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attends as every back end does; `out`, if given, is written and returned."""
        query, key, value = _elements_together(query), _elements_together(key), _elements_together(value)
        num_heads, num_tokens, _ = query.shape
        shape = self._kv.shapes[layer_index]
        if out is None:
            out = torch.empty(num_tokens, num_heads, shape.value_dim, dtype=query.dtype)
        sinks = None if call.sinks is None else call.sinks.float().contiguous()
        native = self._call
        native.query, native.key, native.value = query.data_ptr(), key.data_ptr(), value.data_ptr()
        native.query_head_stride, native.query_token_stride, _ = query.stride()
        native.key_head_stride, native.key_token_stride, _ = key.stride()
        native.value_head_stride, native.value_token_stride, _ = value.stride()
        native.out_token_stride = out.stride(0)
        native.out, native.sinks = out.data_ptr(), None if sinks is None else sinks.data_ptr()
        native.input_type = ELEMENT_TYPES[query.dtype]
        native.num_heads, native.num_kv_heads = num_heads, shape.num_heads
        native.key_dim, native.value_dim = shape.key_dim, shape.value_dim
        native.window, native.scale, native.softcap = call.window or 0, call.scale, call.softcap or 0.0
        layer = self._kv.layers[layer_index]
        native.key_memory, native.value_memory = layer.keys.data_ptr(), layer.values.data_ptr()
        if layer.key_scales is not None and layer.value_scales is not None:
            native.key_scales, native.value_scales = (
                layer.key_scales.data_ptr(),
                layer.value_scales.data_ptr(),
            )
        invoke(self._attention, native)
        return out


def _elements_together(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()
