"""A transformers model of whose weights each rank holds some rows, and all while one of its modules runs.

So transformers' own code computes on whole weights, one module's at a time, and the self-test and the
recognition of a decoder see the model as it would be on one device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .group import Group

ROWS_NAME = "nightshift_rows"
"""Attribute of a module with the rows of its weights that this rank holds, by the weight's name."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of a weight: the ranks' runs are of one length, and the last are filled up with zeros."""

    rows: Tensor
    num_rows: int
    """Rows of the whole weight."""

    def gathered(self, group: Group) -> Tensor:
        """The whole weight; all ranks call it."""
        return group.gather(self.rows).flatten(0, 1)[: self.num_rows]


def run_of(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """The first of a rank's rows, and the one after its last. Runs are of one length but the last ones."""
    length = -(-num_rows // size)
    return min(rank * length, num_rows), min((rank + 1) * length, num_rows)


def hold_rows(module: Any, name: str, held: HeldRows, group: Group) -> None:
    """Replaces a weight of `module` by rows of it, which become all of it while the module runs."""
    by_name: dict[str, HeldRows] = getattr(module, ROWS_NAME, {})
    if not by_name:
        setattr(module, ROWS_NAME, by_name)
        # Functions, and no methods: a copy of the module shares them, and what they close over.
        module.register_forward_pre_hook(lambda module, _: _fill(module, by_name, group))
        module.register_forward_hook(lambda module, *_: _empty(module, by_name), always_call=True)
    whole = module._parameters[name]
    by_name[name] = held
    module._parameters[name] = _parameter(_stand_in(whole.shape, held.rows))


@contextmanager
def whole_weights(module: Any, group: Group) -> Iterator[None]:
    """Makes all weights below `module` whole inside the block, for the last time: their rows are given up."""
    holders = [part for part in module.modules() if getattr(part, ROWS_NAME, None)]
    for holder in holders:
        _fill(holder, getattr(holder, ROWS_NAME), group)
    try:
        yield
    finally:
        for holder in holders:
            _empty(holder, getattr(holder, ROWS_NAME))
            getattr(holder, ROWS_NAME).clear()


def _fill(module: Any, by_name: dict[str, HeldRows], group: Group) -> None:
    for name, held in by_name.items():
        like = module._parameters[name]
        module._parameters[name] = _parameter(held.gathered(group).to(like.device, like.dtype))


def _empty(module: Any, by_name: dict[str, HeldRows]) -> None:
    for name in by_name:
        whole = module._parameters[name]
        if whole.numel():  # else it has been packed
            module._parameters[name] = _parameter(_stand_in(whole.shape, whole))


def _stand_in(shape: torch.Size, like: Tensor) -> Tensor:
    """A tensor of that shape that takes no memory."""
    return like.new_zeros(()).expand(shape)


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)
