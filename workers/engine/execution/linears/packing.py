"""How weights become packed linear layers: by which kernel, and by which other one where it cannot."""

from __future__ import annotations

from torch import Tensor

from .interface import Gate, Linear, LinearDType, Pack, Packing, Unit
from .native import NativeLinear
from .onednn import OneDnnLinear


def native_pack(dtype: LinearDType, unit: Unit = "vectors") -> Pack:
    """Pack for our own kernel. Layers whose inputs tiles cannot take go to vectors, or else to oneDNN."""

    def pack(weight: Tensor, bias: Tensor | None = None, gate: Gate | None = None) -> Linear:
        for each in dict.fromkeys((unit, "vectors")):
            if NativeLinear.can_pack(dtype, weight.shape[1], each):
                return NativeLinear(dtype, weight, bias, gate, each)
        return OneDnnLinear("float32" if dtype == "float32" else "bfloat16", weight, bias, gate)

    return pack


def onednn_pack(dtype: LinearDType) -> Pack:
    """Pack for oneDNN."""
    return lambda weight, bias=None, gate=None: OneDnnLinear(dtype, weight, bias, gate)


def native_packing(dtype: LinearDType) -> Packing:
    """Everything by our own kernel."""
    return Packing(native_pack(dtype), native_pack(dtype))
