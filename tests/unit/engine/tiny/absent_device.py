"""A device that is not there: its tensors lie on the CPU, are said to be elsewhere, and mix with no others.

What a device would refuse is refused: an operation on tensors of two devices. What it computes is the CPU's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
_MAY_MIX = {Tensor.__getitem__, Tensor.__setitem__, Tensor.copy_, torch.Tensor.index_put_}
"""Rows may be chosen by an index of the CPU, and numbers copied from one device to another."""
_COPIES = {Tensor.to, Tensor.cpu, Tensor.cuda}


class AbsentDevice(TorchFunctionMode):
    """Within it, tensors can be made on and moved to `DEVICE`."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE if _is_absent(args[0]) else function(*args, **kwargs)
        tensors = [argument for argument in tree_flatten((args, kwargs))[0] if isinstance(argument, Tensor)]
        is_absent = self._place(function, tensors, args, kwargs)
        args, kwargs = tree_map(_on_cpu, (args, kwargs))
        kwargs.pop("pin_memory", None)  # there is no such memory without the device
        given = {id(tensor) for tensor in tensors}
        result = function(*args, **kwargs)
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor) and (id(tensor) not in given or function in _COPIES):
                if id(tensor) in given and is_absent != _is_absent(tensor):
                    tensor = result = tensor.detach().clone()  # the same memory would be on two devices
                tensor.is_absent = is_absent  # type: ignore[attr-defined]
        return result

    def _place(
        self, function: Callable[..., Any], tensors: list[Tensor], args: Iterable[Any], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the result is on the absent device."""
        where = {_is_absent(tensor) for tensor in tensors if tensor.dim() or _is_absent(tensor)}
        if function == Tensor.cpu:
            return False
        devices = [
            argument for argument in (*args, *kwargs.values()) if isinstance(argument, str | torch.device)
        ]
        if function in _COPIES or not tensors:
            for device in devices:
                return torch.device(device).type == DEVICE.type
        if function in _COPIES and kwargs.get("other") is not None:
            return _is_absent(kwargs["other"])
        if function in _MAY_MIX:
            return _is_absent(tensors[0])
        if len(where) > 1:
            raise RuntimeError(f"{function.__name__}: tensors are on the CPU and on {DEVICE}")
        return where == {True}


def _is_absent(tensor: Tensor) -> bool:
    return getattr(tensor, "is_absent", False)


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == DEVICE.type else value


def move(model: torch.nn.Module) -> torch.nn.Module:
    """Says of a model on the CPU that it is on `DEVICE`."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.is_absent = True  # type: ignore[attr-defined]
    return model
