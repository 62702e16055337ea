"""Linear layers by our own `kernels/native/linear.cpp`: in the processor's vectors or its matrix tiles."""

import ctypes
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checkpoint.narrow.weight import NarrowWeight
from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke, scratch
from .interface import Activation, LinearDType, Unit

PANEL_COLUMNS = 32
GATED_COLUMNS = 16
"""A gated panel holds so many columns of the gate, then the same columns of what it gates."""


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[n, k]` as int8 in [-127, 127] and float32 scales `[n]`: symmetric, one scale a row."""
    scales = (weight.abs().amax(dim=1).float() / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight.float() / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


CHECKED_ROWS = 4096


def are_bfloat16(weight: Tensor) -> bool:
    """Whether bfloat16 holds every number of a float32 `[.., k]` exactly, as of a checkpoint stored in it."""
    if weight.dtype != torch.float32:
        return weight.dtype == torch.bfloat16
    bits = weight.flatten(0, -2).view(torch.int32)
    parts = (bits[first : first + CHECKED_ROWS] for first in range(0, len(bits), CHECKED_ROWS))
    return not any((part & 0xFFFF).any() for part in parts)  # for most others the first part tells


def arrange(rows: Tensor, gate: Activation | None) -> Tensor:
    """Rows in the order of packed columns, padded with zeros to whole panels."""
    if gate is None:
        return _pad_rows(rows, PANEL_COLUMNS)
    halves = [_pad_rows(half, GATED_COLUMNS) for half in rows.chunk(2)]
    woven = torch.stack([half.view(-1, GATED_COLUMNS, rows.shape[1]) for half in halves], dim=1)
    return woven.view(-1, rows.shape[1])


def _pad_rows(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.shape[0] % multiple
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def to_panels(weight: Tensor, group: int) -> Tensor:
    """`[n, k]` to `[n / 32, k / group, 32, group]`, moved as words of four bytes."""
    words = weight.contiguous().view(torch.int32 if group > 1 else weight.dtype)
    return words.view(-1, PANEL_COLUMNS, words.shape[1]).transpose(1, 2).contiguous()


KERNEL_DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of the rows that our kernel reads and writes."""
WEIGHTS_PER_LANE: dict[LinearDType, int] = {"float32": 1, "bfloat16": 2, "int8": 4}
UNITS: tuple[Unit, ...] = ("vectors", "tiles")
TILE_INPUTS: dict[LinearDType, int] = {"float32": 32, "bfloat16": 32, "int8": 64}
"""Inputs that a matrix tile's row holds; float32 goes into tiles as three bfloat16."""


class LinearCall(ctypes.Structure):
    """`LinearCall` of linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "out", "x_scale", "w_scale", "w_sum")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "k", "x_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in ("epilogue", "activation", "out_is_bfloat16")),
        ("factor", ctypes.c_float),
    )


STORE, ADD, ACTIVATED, GATED, HALVES = range(5)
ACTIVATION_NUMBERS = {name: number for number, name in enumerate(get_args(Activation))}
"""Numbered as in linear.cpp."""


class _ActivateCall(ctypes.Structure):
    """`ActivateCall` of lora.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("product", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "n", "out_stride")),
        *((name, ctypes.c_int32) for name in ("activation", "is_gated", "out_is_bfloat16")),
    )


class _QuantizeCall(ctypes.Structure):
    """`QuantizeCall` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out", "scale")),
        *((name, ctypes.c_int64) for name in ("rows", "k", "x_stride")),
        ("x_is_bfloat16", ctypes.c_int32),
    )


class NativeLinear:
    """Our own kernel. A row's result is bitwise the same in any batch, at any number of threads."""

    can_be_written_down = True

    def __init__(
        self,
        dtype: LinearDType,
        weight: Tensor | NarrowWeight,
        bias: Tensor | None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
        unit: Unit = "vectors",
    ) -> None:
        """A narrow weight is one of int8 with a scale for each row, which is packed as it is."""
        kernels = load_kernels("linear", FIXED_ORDER)
        n, k = weight.shape
        assert self.can_pack(dtype, k, unit), (
            f"no kernel for {k} {dtype} inputs in {unit}; ask can_pack first"
        )
        self.in_features, self.out_features = k, n // 2 if gate else n
        self.product_features, self.product_dtype = n, torch.float32
        stored = dtype if isinstance(weight, NarrowWeight) else stored_dtype(dtype, weight)
        self._run: Any = getattr(kernels, symbol("linear", dtype, unit, stored))
        self._store_epilogue = GATED if gate else ACTIVATED if activation else STORE
        rows = weight.codes if isinstance(weight, NarrowWeight) else weight
        columns = [rows] if bias is None else [rows, bias[:, None]]
        arranged = [arrange(column, gate) for column in columns]  # whole panels of rows
        scales = None
        if isinstance(weight, NarrowWeight):
            scales = arrange(weight.scales, gate)[:, 0].float().contiguous()
        elif dtype == "int8":
            arranged[0], scales = quantize_rows(arranged[0])
        self._x_dtype = getattr(torch, dtype)
        self._weight = to_panels(arranged[0].to(getattr(torch, stored)), WEIGHTS_PER_LANE[stored])
        self._bias = arranged[1][:, 0].float().contiguous() if bias is not None else None
        self._scales = scales
        self._sums = arranged[0].sum(dim=1, dtype=torch.int32) if scales is not None else None
        self._quantizer = RowQuantizer() if scales is not None else None
        self._call = LinearCall(
            w=self._weight.data_ptr(),
            bias=_pointer(self._bias),
            w_scale=_pointer(self._scales),
            w_sum=_pointer(self._sums),
            n=n,
            k=k,
            activation=ACTIVATION_NUMBERS[gate or activation or "silu"],
        )

    @staticmethod
    def can_pack(dtype: LinearDType, in_features: int, unit: Unit = "vectors") -> bool:
        """Whether this machine has the kernel and the kernel takes rows of so many inputs."""
        kernels = load_kernels("linear", FIXED_ORDER)
        if not hasattr(kernels, symbol("linear", dtype, unit)) or in_features == 0:
            return False
        if unit == "vectors":
            return in_features % WEIGHTS_PER_LANE[dtype] == 0
        return has_tiles() and in_features % TILE_INPUTS[dtype] == 0

    def store(self, x: Tensor, out: Tensor) -> None:
        self._compute(x, out, self._store_epilogue)

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        assert self._store_epilogue == STORE, "a layer with an activation cannot add"
        assert out.dtype == torch.float32, f"adds to float32, not {out.dtype}"
        self._call.factor = factor
        self._compute(x, out, ADD)

    def multiply(self, x: Tensor, out: Tensor) -> None:
        self._compute(x, out, HALVES if self._store_epilogue == GATED else STORE)

    def activate(self, product: Tensor, out: Tensor) -> None:
        assert product.is_contiguous(), "rows lie together"
        kernels: Any = load_kernels("lora", FIXED_ORDER)
        call = _ActivateCall(
            product=product.data_ptr(),
            out=out.data_ptr(),
            rows=len(out),
            n=self.out_features,
            out_stride=out.stride(0),
            activation=self._call.activation,
            is_gated=self._store_epilogue == GATED,
            out_is_bfloat16=out.dtype == torch.bfloat16,
        )
        invoke(kernels.activate_rows, call)

    def _compute(self, x: Tensor, out: Tensor, epilogue: int) -> None:
        assert out.dtype in KERNEL_DTYPES, f"the kernel writes no {out.dtype}"
        assert x.shape[1] == self.in_features, f"rows of {x.shape[1]} for a layer of {self.in_features}"
        width = self.product_features if epilogue in (STORE, HALVES) else self.out_features
        assert out.shape == (len(x), width), f"{len(x)} rows do not fit {tuple(out.shape)}"
        call = self._call
        if self._quantizer is not None:
            x, x_scale = self._quantizer(x)
            call.x_scale = x_scale.data_ptr()
        else:
            assert x.dtype == self._x_dtype, f"{x.dtype} inputs of a layer in {self._x_dtype}"
        call.x, call.x_stride = x.data_ptr(), x.stride(0)
        call.out, call.out_stride = out.data_ptr(), out.stride(0)
        call.rows, call.epilogue = x.shape[0], epilogue
        call.out_is_bfloat16 = out.dtype == torch.bfloat16
        invoke(self._run, self._call)


class RowQuantizer:
    """Rows of activations as unsigned bytes around 128, one scale a row."""

    def __init__(self) -> None:
        self._quantize: Any = load_kernels("decoder", FIXED_ORDER).quantize_rows  # type: ignore[union-attr]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert x.dtype in KERNEL_DTYPES, f"the kernel reads no {x.dtype}"
        rows, k = x.shape
        out, scale = scratch(rows, k, torch.uint8), scratch(rows, 1, torch.float32)
        call = _QuantizeCall(
            x=x.data_ptr(),
            out=out.data_ptr(),
            scale=scale.data_ptr(),
            rows=rows,
            k=k,
            x_stride=x.stride(0),
            x_is_bfloat16=x.dtype == torch.bfloat16,
        )
        invoke(self._quantize, call)
        return out, scale


def has_tiles() -> bool:
    """Whether our kernel may use this machine's matrix tiles."""
    kernels = load_kernels("linear", FIXED_ORDER)
    return hasattr(kernels, "has_matrix_tiles") and bool(kernels.has_matrix_tiles())  # type: ignore[union-attr]


def stored_dtype(dtype: LinearDType, weight: Tensor) -> LinearDType:
    """Dtype in which weights `[.., k]` are packed: bfloat16 for float32 where this loses nothing."""
    is_halved = dtype == "float32" and weight.shape[-1] % 2 == 0 and are_bfloat16(weight)
    return "bfloat16" if is_halved else dtype


def symbol(call: str, dtype: LinearDType, unit: Unit, stored: LinearDType | None = None) -> str:
    """Name of the function in linear.cpp."""
    weights = "" if stored in (None, dtype) else f"_by_{stored}"
    return f"{call}_{dtype}{weights}{'_tiles' if unit == 'tiles' else ''}"


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
