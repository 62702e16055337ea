"""`kernels/native/decoder.cpp`, called with tensors."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke
from .weights import Attention, HeadNorm, Norm, NormKind

_KINDS: dict[NormKind, int] = {"rms": 1, "layer": 2}


class _NormCall(ctypes.Structure):
    """`NormCall` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "x_rows", "weight", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "out_stride")),
        *((name, ctypes.c_int32) for name in ("kind", "out_is_bfloat16", "adds")),
        *((name, ctypes.c_float) for name in ("eps", "factor")),
    )


class _HeadNorm(ctypes.Structure):
    """`HeadNorm` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        ("weight_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("kind", "spans_heads")),
        ("eps", ctypes.c_float),
    )


class _RotateCall(ctypes.Structure):
    """`RotateCall` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "positions", "cosine", "sine")),
        *((name, _HeadNorm) for name in ("query_norm", "key_norm")),
        *((name, ctypes.c_int64) for name in ("row_stride", "rows", "half")),
        *((name, ctypes.c_int64) for name in ("query_heads", "key_heads", "head_dim")),
        *((name, ctypes.c_int32) for name in ("is_interleaved", "is_bfloat16")),
    )


class _LogitsCall(ctypes.Structure):
    """`LogitsCall` of decoder.cpp."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("scale", "cap")),
    )


class DecoderKernels:
    """Kernels for what a decoder does between its linear layers and its attention."""

    def __init__(self) -> None:
        kernels: Any = load_kernels("decoder", FIXED_ORDER)
        self._norm, self._rotate = kernels.norm, kernels.rotate_heads
        self._finish_logits, self._gather = kernels.finish_logits, kernels.gather_rows
        pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._gather.argtypes = [pointer, int32, pointer, pointer, int64, int64, ctypes.c_float, int32]

    @staticmethod
    def are_available() -> bool:
        return load_kernels("decoder", FIXED_ORDER) is not None

    def norm(
        self,
        x: Tensor,
        rows: Tensor | None,
        norm: Norm | None,
        out: Tensor,
        *,
        adds: bool = False,
        factor: float = 1.0,
    ) -> None:
        """Norms rows of `x` into `out`, all of them into themselves too, or adds `factor` times them."""
        assert x.dtype == torch.float32, f"the kernel norms float32, not {x.dtype}"
        assert x.is_contiguous(), "rows lie together"
        call = _NormCall(
            x=x.data_ptr(),
            x_rows=_pointer(rows),
            weight=_pointer(norm.weight) if norm else None,
            bias=_pointer(norm.bias) if norm else None,
            out=out.data_ptr(),
            rows=len(out),
            n=x.shape[1],
            out_stride=out.stride(0),
            kind=_KINDS[norm.kind] if norm else 0,
            out_is_bfloat16=out.dtype == torch.bfloat16,
            adds=adds,
            eps=norm.eps if norm else 0.0,
            factor=factor,
        )
        invoke(self._norm, call)

    def gather_rows(
        self, table: Tensor, ids: Tensor, out: Tensor, *, factor: float = 1.0, adds: bool = False
    ) -> None:
        """Rows `ids` of `table`, times `factor`, as float32 into `out` or added to it."""
        is_bfloat16 = table.dtype == torch.bfloat16
        self._gather(table.data_ptr(), is_bfloat16, ids.data_ptr(), out.data_ptr(), *out.shape, factor, adds)

    def rotate_heads(self, qkv: Tensor, positions: Tensor, attention: Attention) -> None:
        """Norms and rotates the queries and keys of each row of `qkv`, in place."""
        rotation = attention.rotation
        call = _RotateCall(
            qkv=qkv.data_ptr(),
            positions=positions.data_ptr(),
            cosine=rotation.rotary.cosine.data_ptr() if rotation else None,
            sine=rotation.rotary.sine.data_ptr() if rotation else None,
            query_norm=_head_norm(attention.query_norm, attention.head_dim),
            key_norm=_head_norm(attention.key_norm, attention.head_dim),
            row_stride=qkv.stride(0),
            rows=len(qkv),
            half=rotation.rotary.cosine.shape[1] if rotation else 0,
            query_heads=attention.query_heads,
            key_heads=attention.key_heads,
            head_dim=attention.head_dim,
            is_interleaved=rotation.is_interleaved if rotation else False,
            is_bfloat16=qkv.dtype == torch.bfloat16,
        )
        invoke(self._rotate, call)

    def finish_logits(self, logits: Tensor, factor: float, cap: float) -> None:
        """`cap * tanh(factor * logits / cap)` in place, or `factor * logits` where cap is 0."""
        call = _LogitsCall(logits=logits.data_ptr(), count=logits.numel(), scale=factor, cap=cap)
        invoke(self._finish_logits, call)


def _head_norm(head_norm: HeadNorm | None, head_dim: int) -> _HeadNorm:
    if head_norm is None:
        return _HeadNorm()
    norm = head_norm.norm
    is_by_head = not head_norm.spans_heads and norm.weight is not None and norm.weight.numel() > head_dim
    return _HeadNorm(
        weight=_pointer(norm.weight),
        bias=_pointer(norm.bias),
        weight_stride=head_dim if is_by_head else 0,
        kind=_KINDS[norm.kind],
        spans_heads=head_norm.spans_heads,
        eps=norm.eps,
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
