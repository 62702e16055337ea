"""Compares what modules computed: which tensor is which, by what factor one differs, which norm made it."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ..weights import NormKind
from .facts import NormFacts, NotPlain
from .trace import ModuleCall

TOLERANCE = 1e-4
"""Root mean square of a difference in float32, relative to what is compared."""

FACTOR_TOLERANCE = 1e-3
"""Relative tolerance of a factor."""


def same(left: Tensor, right: Tensor) -> bool:
    """Whether both hold the same numbers in the same order, whatever their shapes."""
    return left.numel() == right.numel() and torch.equal(left.reshape(-1), right.reshape(-1))


def close(got: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors of the same numbers in the same order differ by rounding alone."""
    if got.numel() != wanted.numel():
        return False
    got, wanted = got.reshape(-1).double(), wanted.reshape(-1).double()
    return bool((got - wanted).norm() <= tolerance * wanted.norm())


def factor_of(wanted: Tensor, x: Tensor, tolerance: float = TOLERANCE) -> float | None:
    """The factor that makes `x` the wanted tensor; None if there is none."""
    wanted, x = wanted.reshape(-1).double(), x.reshape(-1).double()
    factor = float(wanted @ x / (x @ x))
    return factor if close(x * factor, wanted, tolerance) else None


class NamedFactors:
    """The numbers that a configuration states, so that a factor that was measured can be known exactly."""

    def __init__(self, config: Any, head_dim: int = 1) -> None:
        stated = [value for value in vars(config).values() if type(value) in (int, float) and value > 0]
        roots = [math.sqrt(value) for value in (config.hidden_size, head_dim)]
        numbers = [*stated, *roots]
        self._exact = [1.0, *numbers, *(1 / number for number in numbers)]

    def exactly(self, measured: float, tolerance: float = FACTOR_TOLERANCE) -> float:
        """The number meant by a measured one. Raises `NotPlain` if none is near."""
        nearest = min(self._exact, key=lambda number: abs(number - measured))
        if abs(nearest - measured) > tolerance * abs(nearest):
            raise NotPlain(f"it multiplies by {measured:.6g}, which its configuration does not explain")
        return float(nearest)


EPS_MAX = 1e-2
EPS_USUAL = (1e-5, 1e-6)
"""Tried where a module does not keep its epsilon."""
SCALES = (2.0, 2e-3)
"""Scales of the numbers tried. The smaller one makes epsilon count."""
KINDS: tuple[NormKind, ...] = ("rms", "layer")


def core(x: Tensor, kind: NormKind, eps: float) -> Tensor:
    """The norm over the last dimension, without weight and bias."""
    if kind == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def recognise_norm(call: ModuleCall) -> NormFacts:
    """The norm that `call.module` computes on tensors like those of the call. Raises `NotPlain`."""
    module = copy.deepcopy(call.module).float().cpu()
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    generator = torch.Generator().manual_seed(0)
    tries = [scale * (torch.randn(call.x.shape, generator=generator) + 1) for scale in SCALES]
    wanted = [module(x) for x in tries]
    for kind in KINDS:
        for eps in _epsilons(module):
            for adds_one in (False, True):
                norm = [_affine(core(x, kind, eps), weight, bias, adds_one) for x in tries]
                if all(close(got, want) for got, want in zip(norm, wanted, strict=True)):
                    return NormFacts(call.path, kind, adds_one, eps)
    raise NotPlain(f"it has norms of type {type(module).__name__}")


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, adds_one: bool) -> Tensor:
    if weight is not None:
        x = x * (weight + 1 if adds_one else weight)
    return x if bias is None else x + bias


def _epsilons(module: Any) -> list[float]:
    own = [value for value in vars(module).values() if isinstance(value, float) and 0 < value <= EPS_MAX]
    return [*own, *EPS_USUAL]
