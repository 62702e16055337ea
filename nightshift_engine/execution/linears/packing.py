"""How weights become packed linear layers: by which kernel, and by which other one where it cannot."""

from __future__ import annotations

from torch import Tensor

from .interface import Activation, Linear, LinearDType, Pack, Packing, Unit
from .native import NativeLinear
from .native_grouped import native_grouped_pack
from .onednn import OneDnnLinear


def native_pack(dtype: LinearDType, unit: Unit = "vectors") -> Pack:
    """Pack for our own kernel. Layers whose inputs tiles cannot take go to vectors, or else to oneDNN."""

    def pack(
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear:
        for each in dict.fromkeys((unit, "vectors")):
            if NativeLinear.can_pack(dtype, weight.shape[1], each):
                return NativeLinear(dtype, weight, bias, activation=activation, gate=gate, unit=each)
        substitute: LinearDType = "float32" if dtype == "float32" else "bfloat16"
        return OneDnnLinear(substitute, weight, bias, activation=activation, gate=gate)

    return pack


def onednn_pack(dtype: LinearDType) -> Pack:
    """Pack for oneDNN."""

    def pack(
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear:
        return OneDnnLinear(dtype, weight, bias, activation=activation, gate=gate)

    return pack


def native_packing(dtype: LinearDType) -> Packing:
    """Everything by our own kernel, in tiles where they can be: no measurement decides."""
    pack = native_pack(dtype, "tiles")
    return Packing(pack, pack, native_grouped_pack(dtype))
