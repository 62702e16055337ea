"""What a packed linear layer does for its callers, whatever computes it.

Knows weights and rows; no layers, no sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Gate = Literal["silu", "gelu_tanh"]
LinearDType = Literal["float32", "bfloat16", "int8"]
Unit = Literal["vectors", "tiles"]
"""What multiplies in our kernel: AVX-512 and its like, or AMX."""


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


@dataclass(frozen=True, slots=True)
class Packing:
    """How a model's linear layers are packed: those inside, and the one that makes logits."""

    layers: Pack
    head: Pack
