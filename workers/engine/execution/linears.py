"""Linear layers packed once at load for the processor at hand, with what follows them done in place.

Several ways to compute one: our own kernel (`kernels/linear.cpp`), with the processor's vectors or its
matrix tiles, and oneDNN's prepacked matrices. Which is fastest is measured, not assumed. Knows weights and
rows; no layers, no sequences.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.build import load_kernels
from .native_calls import FIXED_ORDER, invoke

log = logging.getLogger(__name__)

Gate = Literal["silu", "gelu_tanh"]
LinearDType = Literal["float32", "bfloat16", "int8"]
Unit = Literal["vectors", "tiles"]
"""What multiplies in our kernel: AVX-512 and its like, or AMX."""

PANEL_COLUMNS = 32
GATED_COLUMNS = 16
"""A gated panel holds so many columns of the gate, then the same columns of what it gates."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16)
"""Of rows: all that our kernel reads and writes."""
WEIGHTS_PER_LANE: dict[LinearDType, int] = {"float32": 1, "bfloat16": 2, "int8": 4}
UNITS: tuple[Unit, ...] = ("vectors", "tiles")
LANES_PER_STEP: dict[Unit, int] = {"vectors": 1, "tiles": 16}
"""Inputs are taken so many lanes' worth at a time."""
ACTIVATIONS: dict[Gate, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}

MEASURED_ROWS = 32
"""Rows of the measurement that decides: a decode batch of ordinary size."""
MEASURED_BYTES_MAX = 1 << 24
MEASURED_ROUNDS = 8
BFLOAT16_SLOWDOWN_MAX = 1.25
"""Where it is emulated, bfloat16 is slower by a factor; a busy machine must not tip the balance."""


class Linear(Protocol):
    """`y = x @ weight.T + bias`, and, if it was packed with a gate, `act(y_gate) * y_up`."""

    in_features: int
    out_features: int
    """Columns of what `store` writes: with a gate, half the weight's rows."""
    can_be_written_down: bool
    """Whether all it does are calls of native kernels over the caller's memory (`native_calls`)."""

    def store(self, x: Tensor, out: Tensor) -> None:
        """Write y for rows `x` `[rows, in_features]` to `out` `[rows, out_features]`, in its dtype."""

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """Add y to `out`, which is float32."""


Pack = Callable[..., Linear]
"""`pack(weight [n, k], bias [n] or None, gate=None)`. With a gate, weight is the gate's rows, then up's."""


class _LinearCall(ctypes.Structure):
    """`LinearCall` of linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "out", "x_scale", "w_scale", "w_sum")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "k", "x_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("epilogue", "out_is_bfloat16")),
    )


_STORE, _ADD = 0, 1
_GATED: dict[Gate, int] = {"silu": 2, "gelu_tanh": 3}


class NativeLinear:
    """Our own kernel. A row's result is bitwise the same in any batch, at any number of threads."""

    def __init__(
        self,
        dtype: LinearDType,
        weight: Tensor,
        bias: Tensor | None,
        gate: Gate | None,
        unit: Unit = "vectors",
    ) -> None:
        kernels = load_kernels("linear", FIXED_ORDER)
        n, k = weight.shape
        assert self.can_pack(dtype, k, unit), (
            f"no kernel for {k} {dtype} inputs in {unit}; ask can_pack first"
        )
        self.in_features, self.out_features = k, n // 2 if gate else n
        self._run: Any = getattr(kernels, _symbol(dtype, unit))
        self._dtype = dtype
        self._store_epilogue = _GATED[gate] if gate else _STORE
        columns = [weight] if bias is None else [weight, bias[:, None]]
        arranged = [_arrange(column, gate) for column in columns]  # whole panels of rows
        scales = None
        if dtype == "int8":
            arranged[0], scales = quantize_rows(arranged[0])
        elif arranged[0].dtype != getattr(torch, dtype):
            arranged[0] = arranged[0].to(getattr(torch, dtype))
        self._weight_dtype = arranged[0].dtype
        self._weight = _to_panels(arranged[0], WEIGHTS_PER_LANE[dtype])
        self._bias = arranged[1][:, 0].float().contiguous() if bias is not None else None
        self._scales = scales
        self._sums = arranged[0].sum(dim=1, dtype=torch.int32) if scales is not None else None
        self._quantizer = _RowQuantizer() if scales is not None else None
        self.can_be_written_down = self._quantizer is None
        self._call = _LinearCall(
            w=self._weight.data_ptr(),
            bias=_pointer(self._bias),
            w_scale=_pointer(self._scales),
            w_sum=_pointer(self._sums),
            n=n,
            k=k,
        )

    @staticmethod
    def can_pack(dtype: LinearDType, in_features: int, unit: Unit = "vectors") -> bool:
        """Whether this machine has the kernel and the kernel takes rows of so many inputs."""
        kernels = load_kernels("linear", FIXED_ORDER)
        if not hasattr(kernels, _symbol(dtype, unit)) or in_features == 0:
            return False
        is_permitted = unit == "vectors" or bool(kernels.has_matrix_tiles())  # type: ignore[union-attr]
        return is_permitted and in_features % (WEIGHTS_PER_LANE[dtype] * LANES_PER_STEP[unit]) == 0

    def store(self, x: Tensor, out: Tensor) -> None:
        self._compute(x, out, self._store_epilogue)

    def add_to(self, x: Tensor, out: Tensor) -> None:
        assert self._store_epilogue == _STORE, "a gated layer cannot add"
        assert out.dtype == torch.float32, f"adds to float32, not {out.dtype}"
        self._compute(x, out, _ADD)

    def _compute(self, x: Tensor, out: Tensor, epilogue: int) -> None:
        assert out.dtype in KERNEL_DTYPES, f"the kernel writes no {out.dtype}"
        call = self._call
        if self._quantizer is not None:
            x, x_scale = self._quantizer(x)
            call.x_scale = x_scale.data_ptr()
        else:
            assert x.dtype == self._weight_dtype, f"{x.dtype} inputs for weights in {self._weight_dtype}"
        call.x, call.x_stride = x.data_ptr(), x.stride(0)
        call.out, call.out_stride = out.data_ptr(), out.stride(0)
        call.rows, call.epilogue = x.shape[0], epilogue
        call.out_is_bfloat16 = out.dtype == torch.bfloat16
        invoke(self._run, self._call)


class _RowQuantizer:
    """Rows of activations as unsigned bytes around 128, one scale a row."""

    def __init__(self) -> None:
        self._quantize: Any = load_kernels("decoder", FIXED_ORDER).quantize_rows  # type: ignore[union-attr]
        self._quantize.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert x.dtype in KERNEL_DTYPES, f"the kernel reads no {x.dtype}"
        x = x.contiguous()
        out, scale = torch.empty(x.shape, dtype=torch.uint8), torch.empty(x.shape[0])
        is_bfloat16 = x.dtype == torch.bfloat16
        self._quantize(x.data_ptr(), is_bfloat16, *x.shape, out.data_ptr(), scale.data_ptr())
        return out, scale


class OneDnnLinear:
    """oneDNN's prepacked matrices, through the operators torch's own compiler uses for frozen weights."""

    can_be_written_down = False

    def __init__(self, dtype: LinearDType, weight: Tensor, bias: Tensor | None, gate: Gate | None) -> None:
        self.in_features = weight.shape[1]
        self.out_features = weight.shape[0] // 2 if gate else weight.shape[0]
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(self._dtype).contiguous(), None)
        self._bias = None if bias is None else bias.to(self._dtype)
        self._activation = ACTIVATIONS[gate] if gate else None

    def store(self, x: Tensor, out: Tensor) -> None:
        y = self._linear(x)
        if self._activation is not None:
            gate, up = y.chunk(2, dim=-1)
            y = self._activation(gate) * up
        out.copy_(y)

    def add_to(self, x: Tensor, out: Tensor) -> None:
        out += self._linear(x)

    def _linear(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return y


@dataclass(frozen=True, slots=True)
class Packing:
    """How a model's linear layers are packed: those inside, and the one that makes logits."""

    layers: Pack
    head: Pack


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


def fastest_packing(
    dtype: LinearDType, in_features: int, out_features: int, *, head_dtype: LinearDType
) -> Packing:
    """What `fastest_pack` finds, for a whole model. Raises LookupError.

    `head_dtype` keeps the logits' precision where `dtype` is int8: they decide on tokens.
    """
    layers, _ = fastest_pack(dtype, in_features, out_features)
    if head_dtype == dtype:
        return Packing(layers, layers)
    return Packing(layers, fastest_pack(head_dtype, in_features, out_features)[0])


def fastest_dtype(in_features: int, out_features: int) -> torch.dtype:
    """bfloat16, unless this machine computes layers of this shape clearly slower in it than in float32."""
    candidates: tuple[LinearDType, ...] = ("float32", "bfloat16")
    seconds = {name: fastest_pack(name, in_features, out_features)[1] for name in candidates}
    log.info("seconds for %d rows of a linear layer: %s", MEASURED_ROWS, seconds)
    is_slower = seconds["bfloat16"] > BFLOAT16_SLOWDOWN_MAX * seconds["float32"]
    return torch.float32 if is_slower else torch.bfloat16


def fastest_pack(dtype: LinearDType, in_features: int, out_features: int) -> tuple[Pack, float]:
    """The fastest way to compute layers of this shape here, and its seconds for `MEASURED_ROWS` rows.

    Raises LookupError if there is none: int8 without our kernel.
    """
    ways = [native_pack(dtype, unit) for unit in UNITS if NativeLinear.can_pack(dtype, in_features, unit)]
    if dtype != "int8" and _has_onednn():
        ways.append(onednn_pack(dtype))
    if not ways:
        raise LookupError(f"there is no kernel for {dtype} on this machine")
    timed = [(_seconds(pack, dtype, in_features, out_features), index) for index, pack in enumerate(ways)]
    seconds, best = min(timed)
    log.debug("linears of %s: %s", dtype, timed)
    return ways[best], seconds


def _symbol(dtype: LinearDType, unit: Unit) -> str:
    return f"linear_{dtype}_tiles" if unit == "tiles" else f"linear_{dtype}"


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _seconds(pack: Pack, dtype: LinearDType, in_features: int, out_features: int) -> float:
    rows_max = MEASURED_BYTES_MAX // (4 * in_features)
    weight = torch.full((max(PANEL_COLUMNS, min(out_features, rows_max)), in_features), 0.5)
    linear = pack(weight)
    x_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
    x, out = torch.ones(MEASURED_ROWS, in_features, dtype=x_dtype), torch.empty(MEASURED_ROWS, len(weight))
    times = []
    for _ in range(MEASURED_ROUNDS):
        start = time.perf_counter()
        linear.store(x, out)
        times.append(time.perf_counter() - start)
    return min(times)


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[n, k]` as int8 in [-127, 127] and float32 scales `[n]`: symmetric, one scale a row."""
    scales = (weight.abs().amax(dim=1).float() / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight.float() / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def _arrange(rows: Tensor, gate: Gate | None) -> Tensor:
    """Rows in the order of packed columns, padded with zeros to whole panels."""
    if gate is None:
        return _pad_rows(rows, PANEL_COLUMNS)
    halves = [_pad_rows(half, GATED_COLUMNS) for half in rows.chunk(2)]
    woven = torch.stack([half.view(-1, GATED_COLUMNS, rows.shape[1]) for half in halves], dim=1)
    return woven.view(-1, rows.shape[1])


def _pad_rows(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.shape[0] % multiple
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _to_panels(weight: Tensor, group: int) -> Tensor:
    """`[n, k]` to `[n / 32, k / group, 32, group]`, moved as words of four bytes."""
    words = weight.contiguous().view(torch.int32 if group > 1 else weight.dtype)
    return words.view(-1, PANEL_COLUMNS, words.shape[1]).transpose(1, 2).contiguous()


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
