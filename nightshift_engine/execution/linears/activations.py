"""The functions that follow a linear layer, as torch computes them, and which of them another function is."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .interface import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
}
RANGE = 6.0
TOLERANCE = 1e-6


def activation_of(function: Callable[[Tensor], Tensor]) -> Activation | None:
    """The name of a function of single numbers; None if it is none of ours."""
    x = torch.linspace(-RANGE, RANGE, 201)
    got = function(x)
    for name, own in ACTIVATIONS.items():
        if torch.allclose(got, own(x), rtol=TOLERANCE, atol=TOLERANCE):
            return name
    return None
