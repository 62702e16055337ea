"""Linear layers over narrow weights by our own `kernels/native/linear.cpp`, which writes them out in passing.

Memory is read in the bits of the codes. The numbers are those of the dequantised layer, bit for bit.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from ...checkpoint.narrow.weight import Code, NarrowWeight
from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER
from .interface import Activation, Linear, LinearDType, PackNarrow, Unit
from .native import (
    ACTIVATED,
    ACTIVATION_NUMBERS,
    GATED,
    PANEL_COLUMNS,
    STORE,
    TILE_INPUTS,
    UNITS,
    LinearCall,
    NativeLinear,
    arrange,
    has_tiles,
    symbol,
)

_CODES: dict[Code, int] = {"int4": 0, "int8": 1, "fp8": 2}
"""Numbered as in narrow_panel.h."""


class _NarrowCall(LinearCall):
    """`NarrowCall` of narrow_panel.h, which begins with a `LinearCall`."""

    _fields_ = (
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("group_size", ctypes.c_int64),
        ("code", ctypes.c_int32),
    )


class NarrowNativeLinear(NativeLinear):
    """A row's result is bitwise the same in any batch, at any number of threads."""

    def __init__(
        self,
        dtype: LinearDType,
        weight: NarrowWeight,
        bias: Tensor | None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
        unit: Unit = "vectors",
    ) -> None:
        n, k = weight.shape
        self.in_features, self.out_features = k, n // 2 if gate else n
        self.product_features, self.product_dtype = n, torch.float32
        self._run: Any = getattr(load_kernels("linear", FIXED_ORDER), symbol("narrow", dtype, unit))
        self._store_epilogue = GATED if gate else ACTIVATED if activation else STORE
        self._x_dtype, self._quantizer = getattr(torch, dtype), None
        self._weight = _panels(weight.codes.view(torch.uint8), gate)
        self._scales = _panels(weight.scales.float(), gate)
        self._zeros = None if weight.zeros is None else _panels(weight.zeros, gate)
        self._bias = None if bias is None else arrange(bias[:, None], gate)[:, 0].float().contiguous()
        self._call = _NarrowCall(
            w=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            n=n,
            k=k,
            activation=ACTIVATION_NUMBERS[gate or activation or "silu"],
            scales=self._scales.data_ptr(),
            zeros=None if self._zeros is None else self._zeros.data_ptr(),
            group_size=weight.group_size,
            code=_CODES[weight.code],
        )


def can_pack_narrow(weight: NarrowWeight, dtype: LinearDType, unit: Unit = "vectors") -> bool:
    """Whether this machine has the kernel and the kernel takes such a weight."""
    kernels = load_kernels("linear", FIXED_ORDER)
    k = weight.shape[-1]
    if not hasattr(kernels, symbol("narrow", dtype, unit)) or weight.code not in _CODES:
        return False
    if weight.groups is not None or k == 0 or k % 2 or weight.group_size % 2:
        return False
    return unit == "vectors" or (has_tiles() and k % TILE_INPUTS[dtype] == 0)


def narrow_native_pack(dtype: LinearDType) -> PackNarrow:
    """Packs for matrix tiles where machine, shape and dtype (not float32) allow it, else for vectors."""

    def pack(
        weight: NarrowWeight,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear | None:
        units: tuple[Unit, ...] = ("tiles", "vectors")
        if dtype == "int8":
            return _as_int8(weight, bias, activation, gate)
        unit = next((unit for unit in units if can_pack_narrow(weight, dtype, unit)), None)
        if unit is None:
            return None
        return NarrowNativeLinear(dtype, weight, bias, activation=activation, gate=gate, unit=unit)

    return pack


def _as_int8(
    weight: NarrowWeight, bias: Tensor | None, activation: Activation | None, gate: Activation | None
) -> Linear | None:
    """The kernel for rounded inputs, over the codes as they are; None where they are no int8 with a scale a
    row.
    """
    has_row_scales = weight.scales.shape[1] == 1 and weight.zeros is None
    units = [unit for unit in UNITS if NativeLinear.can_pack("int8", weight.shape[1], unit)]
    if weight.code != "int8" or not has_row_scales or not units:
        return None
    return NativeLinear("int8", weight, bias, activation=activation, gate=gate, unit=units[-1])


def _panels(rows: Tensor, gate: Activation | None) -> Tensor:
    """`[n, m]` to `[n / 32, m, 32]`, in the order of packed columns."""
    arranged = arrange(rows, gate)
    return arranged.view(-1, PANEL_COLUMNS, arranged.shape[1]).transpose(1, 2).contiguous()
