"""What enters each layer of a model of transformers, seen and replaced: how a self-test looks into a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

OnLayer = Callable[[int, Tensor], Tensor]
"""Takes a layer's index and the hidden states before it, `[tokens, hidden]`; returns those it is to have."""
OnExperts = Callable[[int, Tensor], Tensor]
"""Takes a layer's index and the experts chosen in it, `[tokens, choices]`; returns those it is to have."""


@contextmanager
def watch_layers(model: Any, on_layer: OnLayer) -> Iterator[None]:
    """Put what enters each layer of `model` through `on_layer`, in the order of the layers.

    Layers are the modules of a list that is as long as the model is deep; without one nothing is watched.
    """
    with ExitStack() as stack:
        for index, layer in enumerate(_layers(model)):
            hook = layer.register_forward_pre_hook(_entering(index, on_layer), with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _layers(model: Any) -> list[torch.nn.Module]:
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        is_list = isinstance(module, torch.nn.ModuleList) and len(module) == num_layers
        if is_list and all(any(hasattr(part, "layer_idx") for part in layer.modules()) for layer in module):
            return list(module)
    return []


def _entering(index: int, on_layer: OnLayer) -> Callable[..., tuple[Any, Any] | None]:
    def enter(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if not isinstance(hidden, Tensor) or hidden.dim() != 3 or len(hidden) != 1:
            return None
        replaced = on_layer(index, hidden[0])[None]
        return ((replaced, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": replaced})

    return enter
