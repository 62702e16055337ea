"""Weights that a transformers module holds in another form, and has whole only while it runs.

So transformers' own code computes on whole weights, one module's at a time, and the self-test and the
recognition of a decoder see the model as it would be with all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...checkpoint.narrow.weight import NarrowWeight

HELD_NAME = "nightshift_held"
"""Attribute of a module with the weights that it holds, by their names."""


class Held(Protocol):
    """A weight in the form in which it is held."""

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes on this device."""

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The weight itself."""


@dataclass(frozen=True, slots=True)
class HeldNarrow:
    """A weight that is dequantised for its module."""

    weight: NarrowWeight

    @property
    def num_bytes(self) -> int:
        return self.weight.num_bytes

    def whole(self, dtype: torch.dtype) -> Tensor:
        return self.weight.dequantized(dtype)


def hold_weight(module: Any, name: str, held: Held, like: Tensor) -> None:
    """Replaces a weight of `module` by another form of it, which becomes the weight while the module runs.

    Until then a tensor stands in for it that takes no memory, of its shape, on the device and in the dtype of
    `like`: of NaN, so that no code computes with it that reads a weight past its module.
    """
    by_name: dict[str, Held] = getattr(module, HELD_NAME, {})
    if not by_name:
        setattr(module, HELD_NAME, by_name)
        # Functions, and no methods: a copy of the module shares them, and what they close over.
        module.register_forward_pre_hook(lambda module, _: _fill(module, by_name))
        module.register_forward_hook(lambda module, *_: _empty(module, by_name), always_call=True)
    shape = module._parameters[name].shape
    by_name[name] = held
    module._parameters[name] = _parameter(_stand_in(shape, like))


def held_weights(module: Any) -> dict[str, Held]:
    """The weights that a module itself holds, by their names."""
    by_name: dict[str, Held] = getattr(module, HELD_NAME, {})
    return by_name


def narrow_of(linear: Any) -> NarrowWeight | None:
    """The weight of a linear layer as it is held; None if it is there as it is."""
    held = held_weights(linear).get("weight")
    return held.weight if isinstance(held, HeldNarrow) else None


def held_bytes(model: Any) -> dict[int, int]:
    """Bytes of weights that are held in another form, by the ids of the parameters that stand in for them."""
    return {
        id(module._parameters[name]): held.num_bytes
        for module in model.modules()
        for name, held in held_weights(module).items()
    }


@contextmanager
def whole_weights(module: Any) -> Iterator[None]:
    """Makes all weights below `module` whole inside the block, for the last time: they are given up then."""
    holders = [part for part in module.modules() if held_weights(part)]
    for holder in holders:
        _fill(holder, held_weights(holder))
    try:
        yield
    finally:
        for holder in holders:
            _empty(holder, held_weights(holder))
            held_weights(holder).clear()


def make_whole(module: Any) -> int:
    """Makes all narrow weights below `module` whole for good; returns how many there were."""
    holders = [part for part in module.modules() if narrow_of(part) is not None]
    for holder in holders:
        _fill(holder, held_weights(holder))
        held_weights(holder).clear()
    return len(holders)


def _fill(module: Any, by_name: dict[str, Held]) -> None:
    for name, held in by_name.items():
        like = module._parameters[name]
        module._parameters[name] = _parameter(held.whole(like.dtype).to(like.device, like.dtype))


def _empty(module: Any, by_name: dict[str, Held]) -> None:
    for name in by_name:
        whole = module._parameters[name]
        if whole.numel():  # else it has been packed
            module._parameters[name] = _parameter(_stand_in(whole.shape, whole))


def _stand_in(shape: torch.Size, like: Tensor) -> Tensor:
    return like.new_full((), torch.nan).expand(shape)


def _parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)
