"""One rank's part of a decoder: a run of its heads, of its MLPs' columns and of its vocabulary.

Megatron-LM's split (Shoeybi et al. 2019): the first linear layer of a pair by rows of its weight, the second
by columns, so that a layer's ranks exchange twice, the sums that join the residual stream.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidConfig
from ..device.held_weights import whole_weights
from ..kv_memory import KvShape
from ..linears.interface import Linear
from .group import Group


class Part:
    """All of a decoder where there is no group, else a rank's part of it. `rows` and `columns` are runs."""

    def __init__(self, group: Group | None = None) -> None:
        self.group = group
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)

    def whole(self, module: Any) -> AbstractContextManager[None]:
        """Makes the weights below `module` whole inside the block, for the last time."""
        return nullcontext() if self.group is None else whole_weights(module)

    def count(self, number: int) -> int:
        """This rank's share of heads, or of anything that all have the same number of.

        Raises `InvalidConfig`.
        """
        if number % self.size:
            raise InvalidConfig(f"tensor_parallel_size {self.size} does not divide {number} heads or columns")
        return number // self.size

    def rows(self, sections: Sequence[int]) -> Tensor | None:
        """Indices of this rank's rows of a weight that has these sections; None if they are all."""
        if self.group is None:
            return None
        starts = torch.tensor([0, *sections]).cumsum(0).tolist()
        runs = [self._run(start, size) for start, size in zip(starts, sections, strict=False)]
        return torch.cat([torch.arange(run.start, run.stop) for run in runs])

    def columns(self, weight: Tensor) -> Tensor:
        """This rank's columns of `weight`."""
        return weight if self.group is None else weight[:, self._run(0, weight.shape[1])].contiguous()

    def vocabulary(self, weight: Tensor) -> Tensor:
        """This rank's rows of what makes logits, or of its bias; a copy."""
        return weight if self.group is None else weight[self._run(0, len(weight))].clone()

    def added(self, bias: Tensor | None) -> Tensor | None:
        """The bias of a layer whose outputs are summed over the ranks: one of them adds it."""
        return bias if self.rank == 0 else None

    def summed(self, linear: Linear) -> Linear:
        """A layer over this rank's columns, as the layer over all."""
        return linear if self.group is None else SummedLinear(linear, self.group)

    def gathered(self, linear: Linear) -> Linear:
        """A layer with this rank's rows, as the layer with all."""
        return linear if self.group is None else GatheredLinear(linear, self.group)

    def kv_shapes(self, shapes: Mapping[int, KvShape]) -> dict[int, KvShape]:
        """The KV of this rank's heads, by layer."""
        return {
            layer: KvShape(self.count(shape.num_heads), shape.key_dim, shape.value_dim)
            for layer, shape in shapes.items()
        }

    def _run(self, start: int, size: int) -> slice:
        share = self.count(size)
        return slice(start + self.rank * share, start + (self.rank + 1) * share)


class SummedLinear:
    """A layer of which each rank multiplies some of the inputs; float32 sums pass between them."""

    can_be_written_down = False

    def __init__(self, linear: Linear, group: Group) -> None:
        self._linear, self._group = linear, group
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def store(self, x: Tensor, out: Tensor) -> None:
        out.copy_(self._sum(x))

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        out.add_(self._sum(x), alpha=factor)

    def _sum(self, x: Tensor) -> Tensor:
        y = torch.empty(len(x), self.out_features, dtype=torch.float32, device=x.device)
        self._linear.store(x, y)
        self._group.sum(y)
        return y


class GatheredLinear:
    """A layer of which each rank makes some of the outputs."""

    can_be_written_down = False

    def __init__(self, linear: Linear, group: Group) -> None:
        self._linear, self._group = linear, group
        self.in_features, self.out_features = linear.in_features, linear.out_features * group.size

    def store(self, x: Tensor, out: Tensor) -> None:
        y = torch.empty(len(x), self._linear.out_features, dtype=out.dtype, device=x.device)
        self._linear.store(x, y)
        out.copy_(self._group.gather(y).transpose(0, 1).reshape(len(x), self.out_features))

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        raise NotImplementedError("it makes logits, which are added to nothing")
