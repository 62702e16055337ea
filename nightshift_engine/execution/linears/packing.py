"""Packs linear layers for our own kernel or for oneDNN, whichever is measured to be faster here."""

import logging
import time

import torch
from torch import Tensor

from .interface import ACTIVATIONS, Activation, Linear, LinearDType, Pack, Packing, Unit
from .native import PANEL_COLUMNS, UNITS, NativeLinear
from .native_grouped import native_grouped_pack

log = logging.getLogger(__name__)


class OneDnnLinear:
    """One prepacked matrix."""

    can_be_written_down = False

    def __init__(
        self,
        dtype: LinearDType,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation | None,
        gate: Activation | None,
    ) -> None:
        self.in_features = weight.shape[1]
        self.out_features = weight.shape[0] // 2 if gate else weight.shape[0]
        self.product_features, self.product_dtype = weight.shape[0], torch.float32
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(self._dtype).contiguous(), None)
        self._bias = None if bias is None else bias.to(self._dtype)
        self._activation = ACTIVATIONS[activation] if activation else None
        self._gate = ACTIVATIONS[gate] if gate else None

    def store(self, x: Tensor, out: Tensor) -> None:
        self.activate(self._linear(x), out)

    def multiply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(self._linear(x))

    def activate(self, product: Tensor, out: Tensor) -> None:
        y = product.to(self._dtype)
        if self._activation is not None:
            y = self._activation(y)
        if self._gate is not None:
            gate, up = y.chunk(2, dim=-1)
            y = self._gate(gate) * up
        out.copy_(y)

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        out.add_(self._linear(x), alpha=factor)

    def _linear(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return y


def has_onednn() -> bool:
    """Whether torch was built with it."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def native_pack(dtype: LinearDType, unit: Unit = "vectors") -> Pack:
    """Packs for our own kernel. Layers whose inputs tiles cannot take go to vectors, or else to oneDNN."""

    def pack(
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear:
        for candidate in dict.fromkeys((unit, "vectors")):
            if NativeLinear.can_pack(dtype, weight.shape[1], candidate):
                return NativeLinear(dtype, weight, bias, activation=activation, gate=gate, unit=candidate)
        substitute: LinearDType = "float32" if dtype == "float32" else "bfloat16"
        return OneDnnLinear(substitute, weight, bias, activation=activation, gate=gate)

    return pack


def onednn_pack(dtype: LinearDType) -> Pack:
    """Packs for oneDNN."""

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


MEASURED_ROWS = 32
"""Rows of the measurement that decides: a decode batch of ordinary size."""
MEASURED_BYTES_MAX = 1 << 24
MEASURED_ROUNDS = 8
WEIGHT = 0.1
"""A weight that is no bfloat16: float32 is measured where it must read all 32 bits."""
BFLOAT16_SLOWDOWN_MAX = 1.25
"""Emulated bfloat16 is slower by a larger factor; a busy machine must not tip the balance."""


def fastest_packing(
    dtype: LinearDType, in_features: int, out_features: int, *, head_dtype: LinearDType
) -> Packing:
    """Packs a whole model by what `fastest_pack` finds. Raises LookupError.

    `head_dtype` keeps the logits' precision where `dtype` is int8: they decide on tokens.
    """
    layers, _ = fastest_pack(dtype, in_features, out_features)
    if head_dtype == dtype:
        return Packing(layers, layers, native_grouped_pack(dtype))
    head, _ = fastest_pack(head_dtype, in_features, out_features)
    return Packing(layers, head, native_grouped_pack(dtype))


def fastest_dtype(in_features: int, out_features: int) -> torch.dtype:
    """bfloat16, unless this machine computes layers of this shape clearly slower in it than in float32."""
    candidates: tuple[LinearDType, ...] = ("float32", "bfloat16")
    seconds = {name: fastest_pack(name, in_features, out_features)[1] for name in candidates}
    log.info("seconds for %d rows of a linear layer: %s", MEASURED_ROWS, seconds)
    is_slower = seconds["bfloat16"] > BFLOAT16_SLOWDOWN_MAX * seconds["float32"]
    return torch.float32 if is_slower else torch.bfloat16


def fastest_pack(
    dtype: LinearDType, in_features: int, out_features: int, rows: int = MEASURED_ROWS
) -> tuple[Pack, float]:
    """The fastest way to compute so many rows by layers of this shape here, and its seconds.

    Raises LookupError if there is none: int8 without our kernel.
    """
    ways = [native_pack(dtype, unit) for unit in UNITS if NativeLinear.can_pack(dtype, in_features, unit)]
    if dtype != "int8" and has_onednn():
        ways.append(onednn_pack(dtype))
    if not ways:
        raise LookupError(f"there is no kernel for {dtype} on this machine")
    shape = in_features, out_features
    timed = [(_seconds(pack, dtype, *shape, rows), index) for index, pack in enumerate(ways)]
    seconds, best = min(timed)
    log.debug("linears of %s: %s", dtype, timed)
    return ways[best], seconds


def _seconds(pack: Pack, dtype: LinearDType, in_features: int, out_features: int, rows: int) -> float:
    rows_max = MEASURED_BYTES_MAX // (4 * in_features)
    weight = torch.full((max(PANEL_COLUMNS, min(out_features, rows_max)), in_features), WEIGHT)
    linear = pack(weight)
    x_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
    x, out = torch.ones(rows, in_features, dtype=x_dtype), torch.empty(rows, len(weight))
    times = []
    for _ in range(MEASURED_ROUNDS):
        start = time.perf_counter()
        linear.store(x, out)
        times.append(time.perf_counter() - start)
    return min(times)
