"""`kernels/decoder.cpp`, spoken to with tensors."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.build import load_kernels
from ..native_calls import FIXED_ORDER, invoke


class HeadShape(Protocol):
    """Heads in a row of queries, keys and values."""

    @property
    def query_heads(self) -> int: ...
    @property
    def key_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...


class HeadNorms(Protocol):
    """RMS norms over single heads, where a model has them."""

    @property
    def query_norm(self) -> Tensor | None: ...
    @property
    def key_norm(self) -> Tensor | None: ...


class _NormCall(ctypes.Structure):
    """`NormCall` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "x_rows", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "n")),
        ("out_is_bfloat16", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _RotateCall(ctypes.Structure):
    """`RotateCall` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "positions", "cosine", "sine")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm")),
        *((name, ctypes.c_int64) for name in ("row_stride", "rows", "half")),
        *((name, ctypes.c_int64) for name in ("query_heads", "key_heads", "head_dim")),
        ("is_bfloat16", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class DecoderKernels:
    """What a decoder does between its linear layers and its attention."""

    def __init__(self) -> None:
        kernels: Any = load_kernels("decoder", FIXED_ORDER)
        self._rms_norm, self._rotate, self._gather = (
            kernels.rms_norm,
            kernels.rotate_heads,
            kernels.gather_rows,
        )
        pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._gather.argtypes = [pointer, int32, pointer, pointer, int64, int64]

    def rms_norm(self, x: Tensor, rows: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
        """Rows of `x` `[.., n]`, all or those given, normed and weighted into `out` `[rows, n]`."""
        call = _NormCall(
            x=x.data_ptr(),
            x_rows=_pointer(rows),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            rows=len(out),
            n=x.shape[1],
            out_is_bfloat16=out.dtype == torch.bfloat16,
            eps=eps,
        )
        invoke(self._rms_norm, call)

    def gather_rows(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
        """Rows `ids` of `table`, as float32."""
        is_bfloat16 = table.dtype == torch.bfloat16
        self._gather(table.data_ptr(), is_bfloat16, ids.data_ptr(), out.data_ptr(), *out.shape)

    def rotate_heads(
        self, qkv: Tensor, positions: Tensor, cosine: Tensor, sine: Tensor, shape: HeadShape, norms: HeadNorms
    ) -> None:
        """Norm (where there are norms) and rotate the queries and keys of each row of `qkv`, in place."""
        call = _RotateCall(
            qkv=qkv.data_ptr(),
            positions=positions.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            query_norm=_pointer(norms.query_norm),
            key_norm=_pointer(norms.key_norm),
            row_stride=qkv.stride(0),
            rows=len(qkv),
            half=cosine.shape[1],
            query_heads=shape.query_heads,
            key_heads=shape.key_heads,
            head_dim=shape.head_dim,
            is_bfloat16=qkv.dtype == torch.bfloat16,
            eps=shape.norm_eps,
        )
        invoke(self._rotate, call)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
