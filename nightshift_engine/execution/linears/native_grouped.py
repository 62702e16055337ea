"""Linear layers of one shape side by side, by our own kernel, each for its own run of rows."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke
from .interface import Activation, GroupedLinear, LinearDType, PackGrouped, Unit
from .native import (
    ACTIVATION_NUMBERS,
    GATED,
    KERNEL_DTYPES,
    STORE,
    UNITS,
    WEIGHTS_PER_LANE,
    LinearCall,
    NativeLinear,
    RowQuantizer,
    arrange,
    quantize_rows,
    stored_dtype,
    symbol,
    to_panels,
)


class _GroupedCall(ctypes.Structure):
    """`GroupedCall` of linear.cpp."""

    _fields_ = (("all", LinearCall), ("starts", ctypes.c_void_p), ("groups", ctypes.c_int64))


class NativeGroupedLinear:
    """A row's result is bitwise the same in any batch, at any number of threads."""

    def __init__(self, dtype: LinearDType, weight: Tensor, gate: Activation | None, unit: Unit) -> None:
        groups, n, k = weight.shape
        assert NativeLinear.can_pack(dtype, k, unit), "ask can_pack first"
        self.out_features = n // 2 if gate else n
        kernels: Any = load_kernels("linear", FIXED_ORDER)
        stored = stored_dtype(dtype, weight)
        self._run = getattr(kernels, symbol("grouped", dtype, unit, stored))
        self._weights, self._scales, self._sums = _pack(stored, weight, gate)
        self._quantizer = RowQuantizer() if dtype == "int8" else None
        self.can_be_written_down = self._quantizer is None
        is_float32 = dtype == "float32"
        self._x_dtype = torch.float32 if is_float32 else torch.bfloat16
        of_all = LinearCall(
            w=self._weights.data_ptr(),
            w_scale=None if self._scales is None else self._scales.data_ptr(),
            w_sum=None if self._sums is None else self._sums.data_ptr(),
            n=n,
            k=k,
            epilogue=GATED if gate else STORE,
            activation=ACTIVATION_NUMBERS[gate or "silu"],
        )
        self._call = _GroupedCall(all=of_all, groups=groups)

    def store(self, x: Tensor, starts: Tensor, out: Tensor) -> None:
        assert out.dtype in KERNEL_DTYPES, f"the kernel writes no {out.dtype}"
        assert x.shape[1] == self._call.all.k, f"rows of {x.shape[1]} for layers of {self._call.all.k}"
        assert len(starts) == self._call.groups + 1, f"{len(starts)} starts of {self._call.groups} groups"
        of_all = self._call.all
        if self._quantizer is not None:
            x, x_scale = self._quantizer(x)
            of_all.x_scale = x_scale.data_ptr()
        else:
            assert x.dtype == self._x_dtype, f"{x.dtype} inputs for weights in {self._x_dtype}"
        of_all.x, of_all.x_stride = x.data_ptr(), x.stride(0)
        of_all.out, of_all.out_stride = out.data_ptr(), out.stride(0)
        of_all.rows, of_all.out_is_bfloat16 = len(x), out.dtype == torch.bfloat16
        self._call.starts = starts.data_ptr()
        invoke(self._run, self._call)


def native_grouped_pack(dtype: LinearDType) -> PackGrouped:
    """Packs for matrix tiles where machine, shape and dtype (not float32) allow it, else for vectors."""
    kernels = load_kernels("linear", FIXED_ORDER)

    def can_pack(in_features: int, unit: Unit) -> bool:
        return hasattr(kernels, symbol("grouped", dtype, unit)) and NativeLinear.can_pack(
            dtype, in_features, unit
        )

    def pack(weight: Tensor, *, gate: Activation | None = None) -> GroupedLinear | None:
        units = [unit for unit in UNITS if can_pack(weight.shape[2], unit)]
        return NativeGroupedLinear(dtype, weight, gate, units[-1]) if units else None

    return pack


def _pack(
    dtype: LinearDType, weight: Tensor, gate: Activation | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Panels of all layers, and in int8 the scales and sums of their columns; one layer at a time."""
    panels: Tensor | None = None
    scales, sums = [], []
    for index, layer in enumerate(weight):
        rows = arrange(layer, gate)
        if dtype == "int8":
            rows, scale = quantize_rows(rows)
            scales.append(scale)
            sums.append(rows.sum(dim=1, dtype=torch.int32))
        one = to_panels(rows if dtype == "int8" else rows.to(getattr(torch, dtype)), WEIGHTS_PER_LANE[dtype])
        if panels is None:
            panels = one.new_empty(len(weight), *one.shape)
        panels[index] = one
    assert panels is not None, "a group has at least one layer"
    return panels, torch.stack(scales) if scales else None, torch.stack(sums) if sums else None
