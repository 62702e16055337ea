"""The functions that follow a linear layer, as torch computes them, and which of them another function is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checkpoint.narrow.weight import NarrowWeight

Activation = Literal["silu", "gelu_tanh", "gelu", "gelu_quick", "relu", "relu_squared"]
"""Functions that follow a linear layer; "gelu" is the exact one, "gelu_quick" x sigmoid(1.702 x)."""
LinearDType = Literal["float32", "bfloat16", "int8"]
Unit = Literal["vectors", "tiles"]
"""The unit that multiplies in our kernel: AVX-512 and its like, or AMX."""


class Linear(Protocol):
    """`y = x @ weight.T + bias`; packed with an activation `act(y)`, with a gate `act(y_gate) * y_up`."""

    in_features: int
    out_features: int
    """Columns of what `store` writes: with a gate, half the weight's rows."""
    can_be_written_down: bool
    """Whether all it does are calls of native kernels over the caller's memory (`native_calls`)."""

    def store(self, x: Tensor, out: Tensor) -> None:
        """Writes y for rows `x` `[rows, in_features]` to `out` `[rows, out_features]`, in its dtype."""

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        """Adds `factor` times y to `out`, which is float32. Not for layers that end in an activation."""


@runtime_checkable
class AdaptableLinear(Linear, Protocol):
    """A layer with an activation whose products can be changed before it."""

    product_features: int
    """Columns of what `multiply` writes: rows of the weight."""
    product_dtype: torch.dtype

    def multiply(self, x: Tensor, out: Tensor) -> None:
        """Writes `x @ weight.T + bias` to `out` `[rows, product_features]`, of `product_dtype`."""

    def activate(self, product: Tensor, out: Tensor) -> None:
        """Writes what `store` makes of such products to `out` `[rows, out_features]`, bit for bit."""


class Pack(Protocol):
    """Makes a packed layer of `weight` `[n, k]` and `bias` `[n]`; at most one of `activation` and `gate`.

    With a gate, weight and bias are the gate's rows, then those of what it gates.
    """

    def __call__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear: ...


class PackNarrow(Protocol):
    """Makes a packed layer of a narrow weight as `Pack` does; None if this machine has no kernel for it."""

    def __call__(
        self,
        weight: NarrowWeight,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> Linear | None: ...


class GroupedLinear(Protocol):
    """Several layers of one shape, each for its own run of rows: the experts of a mixture."""

    out_features: int
    can_be_written_down: bool
    """The same as `Linear`'s."""

    def store(self, x: Tensor, starts: Tensor, out: Tensor) -> None:
        """Stores like `Linear.store`; layer g computes rows `starts[g]` to `starts[g + 1]`, int64 `[groups +
        1]`.
        """


class PackGrouped(Protocol):
    """Makes a packed group of `weight` `[groups, n, k]`; None if this machine has no kernel for it."""

    def __call__(self, weight: Tensor, *, gate: Activation | None = None) -> GroupedLinear | None: ...


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of a model's linear layers: those inside, the one that makes logits, and experts."""

    layers: Pack
    head: Pack
    experts: PackGrouped | None = None
    """The packing of experts. None: they are left as they are."""
    narrow: PackNarrow | None = None
    """The packing of layers whose weights are narrow. None: they are dequantised."""


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
}
_RANGE = 6.0
_TOLERANCE = 1e-6


def activation_of(function: Callable[[Tensor], Tensor]) -> Activation | None:
    """The name of a function of single numbers; None if it is none of ours."""
    x = torch.linspace(-_RANGE, _RANGE, 201)
    got = function(x)
    for name, own in ACTIVATIONS.items():
        if torch.allclose(got, own(x), rtol=_TOLERANCE, atol=_TOLERANCE):
            return name
    return None
