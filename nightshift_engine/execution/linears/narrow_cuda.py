"""Linear layers over narrow weights on CUDA: by our Triton kernel, or in fp8 by torch's scaled product."""

from __future__ import annotations

import importlib.util
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checkpoint.narrow.weight import FP8_MAX, Code, NarrowWeight
from .interface import Activation, Linear, PackNarrow

log = logging.getLogger(__name__)

FP8_CAPABILITY_MIN = (8, 9)
"""Compute capability from which on tensor cores multiply fp8."""
SCALED_MULTIPLE, SCALED_BLOCK = 16, 128
"""Multiples of which a scaled product has inputs and outputs; the size of its blocks of scales."""
TRIED_ROWS = 17
SCALED_ERROR_MAX = 0.02
"""Error of a scaled product beside the same one in float32, of bfloat16 results; a wrong scale is far off."""
_CODES: dict[Code, int] = {"int4": 0, "int8": 1, "fp8": 2}
"""Numbered as in kernels/triton/narrow.py."""

ScaledProduct = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(x * x_scale) @ (w * w_scale).T` of fp8 `x` `[m, k]` and `w` `[n, k]`, as bfloat16.

Scales are float32, `[m, 1]` and `[n, 1]`, or of blocks of 128: `[m, k / 128]` and `[n / 128, k / 128]`.
"""


class NarrowLinear(ABC):
    """A product by one of those below, and an activation or a sum into float32 after it."""

    can_be_written_down = False

    def __init__(
        self,
        weight: NarrowWeight,
        bias: Tensor | None,
        activation: Activation | None,
        gate: Activation | None,
    ) -> None:
        self._n, self.in_features = weight.shape
        self.out_features = self._n // 2 if gate else self._n
        self._bias, self._activation = bias, gate or activation

    def store(self, x: Tensor, out: Tensor) -> None:
        if self._activation is None:
            self._multiply(x, out)
            return
        from ...kernels.triton.rows import activate  # imports triton, which is not everywhere

        product = x.new_empty(len(x), self._n)
        self._multiply(x, product)
        activate(product, self._activation, out)

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        assert self._activation is None, "a layer with an activation cannot add"
        product = torch.empty_like(out)
        self._multiply(x, product)
        out.add_(product, alpha=factor)

    @abstractmethod
    def _multiply(self, x: Tensor, out: Tensor) -> None:
        """Writes the product and bias to `out` `[rows, n]`."""


class TritonNarrowLinear(NarrowLinear):
    """Our kernel: inputs are not rounded, and weights are those of the dequantised layer."""

    def __init__(
        self,
        weight: NarrowWeight,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> None:
        """Raises ValueError for groups that the kernel does not take."""
        super().__init__(weight, bias, activation, gate)
        from ...kernels.triton.narrow import inputs_of

        weight, self._group_size = _in_whole_groups(weight)
        self._code = _CODES[weight.code]
        self._codes = _padded_codes(weight, inputs_of(self._group_size))
        self._scales = weight.scales.float().contiguous()
        self._zeros = None if weight.zeros is None else weight.zeros.contiguous()
        self._compiled: set[torch.dtype] = set()

    def _multiply(self, x: Tensor, out: Tensor) -> None:
        from ...kernels.triton.narrow import HEIGHTS, multiply_narrow

        heights: tuple[int | None, ...] = (None,)
        if out.dtype not in self._compiled:  # all at once, so that no later step waits for a compiler
            self._compiled.add(out.dtype)
            heights = HEIGHTS
        for height in heights:
            multiply_narrow(
                x, self._codes, self._scales, self._zeros, self._bias, out,
                code=self._code, group_size=self._group_size, height=height,
            )  # fmt: skip


class Fp8Linear(NarrowLinear):
    """fp8 times fp8: a row's inputs are rounded by the largest of each group, or of the row."""

    def __init__(
        self,
        weight: NarrowWeight,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
        product: ScaledProduct,
    ) -> None:
        super().__init__(weight, bias, activation, gate)
        self._weight, self._product = weight.codes.contiguous(), product
        self._is_blocked = weight.group_size == SCALED_BLOCK and weight.scales.shape[1] > 1
        scales = weight.scales.float()
        self._scales = (scales[::SCALED_BLOCK] if self._is_blocked else scales).contiguous()
        self._group_size = SCALED_BLOCK if self._is_blocked else self.in_features

    def _multiply(self, x: Tensor, out: Tensor) -> None:
        rounded, scales = round_inputs(x, self._group_size)
        product = self._product(rounded, scales, self._weight, self._scales)
        if self._bias is not None:
            product = product + self._bias
        out.copy_(product)


def round_inputs(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Rows `[m, k]` as fp8, and the scale of each group of each row, float32 `[m, k / group_size]`."""
    grouped = x.float().view(len(x), -1, group_size)
    scales = (grouped.abs().amax(dim=2) / FP8_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    return (grouped / scales[..., None]).to(torch.float8_e4m3fn).view(x.shape), scales


def exact_product(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """A `ScaledProduct` in float32: the reference."""
    group = x.shape[1] // x_scale.shape[1]
    x_scale = x_scale.repeat_interleave(group, 1)
    w_scale = w_scale.repeat_interleave(group, 1).repeat_interleave(w.shape[0] // w_scale.shape[0], 0)
    return ((x.float() * x_scale) @ (w.float() * w_scale).T).bfloat16()


def torch_product(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """A `ScaledProduct` by torch: cuBLASLt or CUTLASS, row by row, or in blocks of 1 x 128 and 128 x 128."""
    is_blocked = x_scale.shape[1] > 1
    recipes = (
        (F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128)
        if is_blocked
        else (F.ScalingType.RowWise, F.ScalingType.RowWise)
    )
    if is_blocked:
        x_scale = x_scale.T.contiguous().T  # the scales of a block lie together, row after row
    return F.scaled_mm(x, w.T, x_scale, recipes[0], w_scale.T, recipes[1], output_dtype=torch.bfloat16)


def multiplies_fp8(device: torch.device) -> bool:
    """Whether a device multiplies e4m3fn (AMD's older ones have e4m3fnuz, whose numbers are others)."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.get_device_capability(device) >= FP8_CAPABILITY_MIN)


def cuda_narrow_pack(device: torch.device) -> PackNarrow:
    """Packs for fp8 tensor cores where weight and device allow it, else for our kernel."""
    product = torch_product if multiplies_fp8(device) else None

    def pack(
        weight: NarrowWeight,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear | None:
        if weight.groups is not None or weight.code not in _CODES:
            return None
        if product is not None and is_scaled(weight) and computes_scaled(weight, product):
            return Fp8Linear(weight, bias, activation=activation, gate=gate, product=product)
        if importlib.util.find_spec("triton") is None:
            return None
        try:
            return TritonNarrowLinear(weight, bias, activation=activation, gate=gate)
        except ValueError:
            return None

    return pack


def is_scaled(weight: NarrowWeight) -> bool:
    """Whether inputs of a layer may be rounded, and its shape and scales are those of a scaled product."""
    n, k = weight.shape
    if weight.code != "fp8" or not weight.rounds_inputs or n % SCALED_MULTIPLE or k % SCALED_MULTIPLE:
        return False
    if weight.scales.shape[1] == 1:
        return True
    blocks = weight.scales[::SCALED_BLOCK].repeat_interleave(SCALED_BLOCK, 0)[:n]
    is_whole = weight.group_size == SCALED_BLOCK and n % SCALED_BLOCK == 0 and k % SCALED_BLOCK == 0
    return is_whole and torch.equal(blocks, weight.scales)


def computes_scaled(weight: NarrowWeight, product: ScaledProduct) -> bool:
    """Tries a product on the weight itself: releases of torch differ in the scales that they take."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIED_ROWS, weight.shape[1], generator=generator).to(weight.codes.device)
    wanted, got = (Fp8Linear(weight, product=by) for by in (exact_product, product))
    results = [torch.empty(TRIED_ROWS, weight.shape[0], device=x.device) for _ in range(2)]
    try:
        wanted.store(x, results[0])
        got.store(x, results[1])
    except (RuntimeError, NotImplementedError, ValueError) as error:
        log.warning("fp8 layers are computed with inputs that are not rounded: %s", error)
        return False
    error_share = ((results[1] - results[0]).norm() / results[0].norm()).item()
    return bool(error_share <= SCALED_ERROR_MAX)


def _in_whole_groups(weight: NarrowWeight) -> tuple[NarrowWeight, int]:
    """A weight and the size of its groups, which may be any size where each row is one."""
    if weight.scales.shape[1] > 1:
        return weight, weight.group_size
    size = -(-weight.shape[1] // 64) * 64
    return replace(weight, group_size=size), size


def _padded_codes(weight: NarrowWeight, inputs: int) -> Tensor:
    """Codes as bytes, padded to whole products; int4 has the halves of a pair of products in one byte."""
    n, k = weight.shape
    if weight.code != "int4":
        return F.pad(weight.codes.view(torch.uint8), (0, -k % inputs))
    halves = torch.stack([weight.codes & 15, weight.codes >> 4], dim=-1).view(n, k)
    pairs = F.pad(halves, (0, -k % (2 * inputs))).view(n, -1, 2, inputs)
    return (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).flatten(1).contiguous()
