"""Comparing what modules computed: which tensor is which, and by what factor one differs from another."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .facts import NotPlain

TOLERANCE = 1e-4
"""Root mean square of a difference in float32, relative to what is compared."""

FACTOR_TOLERANCE = 1e-3
"""Of a factor, relative."""


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
