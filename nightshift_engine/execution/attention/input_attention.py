"""Attention over the tokens of whole inputs by our own C++ kernel: nothing is padded, gathered or copied.

See `kernels/native/input_attention.cpp`. Needs a C++ compiler once per machine.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke

DTYPES = (torch.float32, torch.bfloat16)


class _Call(ctypes.Structure):
    """`InputAttentionCall` of the kernel, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "out", "query_starts", "key_starts")),
        *((f"{name}_stride", ctypes.c_int64) for name in ("query", "key", "value", "out")),
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_heads", "head_dim")),
        ("is_bfloat16", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class InputAttention:
    """Every query sees every key of its own input. An input's result does not depend on the others."""

    def __init__(self) -> None:
        kernels: Any = load_kernels("input_attention", FIXED_ORDER)
        assert kernels is not None, "there is no kernel here; ask is_available first"
        self._attend = kernels.input_attention

    @staticmethod
    def is_available() -> bool:
        return load_kernels("input_attention", FIXED_ORDER) is not None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        *,
        query_starts: Tensor,
        key_starts: Tensor,
        head_dim: int,
    ) -> None:
        """Rows `[rows, heads * head_dim]` to `out`, of one dtype of `DTYPES`.

        `query_starts` and `key_starts`: where the rows of each input begin and the last one's end, int64
        `[inputs + 1]`. Raises MemoryError.
        """
        assert query.dtype in DTYPES, f"the kernel reads no {query.dtype}"
        assert query.dtype == key.dtype == value.dtype == out.dtype, "rows are of one dtype"
        assert all(each.stride(1) == 1 for each in (query, key, value, out)), "a row's elements lie together"
        call = _Call(
            *(each.data_ptr() for each in (query, key, value, out, query_starts, key_starts)),
            *(each.stride(0) for each in (query, key, value, out)),
            num_inputs=len(query_starts) - 1,
            num_heads=query.shape[1] // head_dim,
            head_dim=head_dim,
            is_bfloat16=query.dtype == torch.bfloat16,
            scale=head_dim**-0.5,
        )
        invoke(self._attend, call)
