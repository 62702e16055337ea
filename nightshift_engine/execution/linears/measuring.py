"""Which way to compute linear layers is fastest here: measured at load, not assumed."""

from __future__ import annotations

import logging
import time

import torch

from .interface import LinearDType, Pack, Packing
from .native import UNITS, NativeLinear
from .native_grouped import native_grouped_pack
from .onednn import has_onednn
from .packing import native_pack, onednn_pack
from .panels import PANEL_COLUMNS

log = logging.getLogger(__name__)

MEASURED_ROWS = 32
"""Rows of the measurement that decides: a decode batch of ordinary size."""
MEASURED_BYTES_MAX = 1 << 24
MEASURED_ROUNDS = 8
WEIGHT = 0.1
"""Not a bfloat16: float32 is measured where it must read all 32 bits."""
BFLOAT16_SLOWDOWN_MAX = 1.25
"""Where it is emulated, bfloat16 is slower by a factor; a busy machine must not tip the balance."""


def fastest_packing(
    dtype: LinearDType, in_features: int, out_features: int, *, head_dtype: LinearDType
) -> Packing:
    """What `fastest_pack` finds, for a whole model. Raises LookupError.

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
