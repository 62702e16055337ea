"""Linear layers by oneDNN's prepacked matrices, through the operators torch's own compiler uses."""

from __future__ import annotations

import torch
from torch import Tensor

from .activations import ACTIVATIONS
from .interface import Activation, LinearDType


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
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(self._dtype).contiguous(), None)
        self._bias = None if bias is None else bias.to(self._dtype)
        self._activation = ACTIVATIONS[activation] if activation else None
        self._gate = ACTIVATIONS[gate] if gate else None

    def store(self, x: Tensor, out: Tensor) -> None:
        y = self._linear(x)
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
