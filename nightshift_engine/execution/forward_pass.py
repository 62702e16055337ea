"""A step's token ids to logits: through transformers' own modules here, or written out in `decoder/`."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from .attention.interface import AttentionStep, paged_step
from .step_layout import StepInputs

OnLayer = Callable[[int, Tensor], Tensor]
"""Takes a layer's index and the hidden states before it, `[tokens, hidden]`; returns those it is to have."""
OnExperts = Callable[[int, Tensor], Tensor]
"""Takes a layer's index and the experts chosen in it, `[tokens, choices]`; returns those it is to have."""


@contextmanager
def watch_layers(model: Any, on_layer: OnLayer) -> Iterator[None]:
    """Puts what enters each layer of `model` through `on_layer`, in the order of the layers.

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


class ForwardPass(Protocol):
    """A model, as the runner calls it."""

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        """Logits `[rows, vocab]`, float32, of `inputs.logits_rows`; valid until the next call."""

    def watch_layers(
        self, on_layer: OnLayer, on_experts: OnExperts | None = None
    ) -> AbstractContextManager[None]:
        """Puts what enters each layer through `on_layer`, and our choice of experts through `on_experts`."""


class ModulePass:
    """transformers' own modules, whose attention layers come to `attention` through the hook."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        arguments = {"input_ids": inputs.input_ids[None], "position_ids": inputs.layout.positions[None]}
        rows = inputs.logits_rows
        logits: Tensor
        with paged_step(attention):
            if self._has_logits_to_keep:
                logits = self._model(**arguments, use_cache=False, logits_to_keep=rows).logits[0]
            else:
                logits = self._model(**arguments, use_cache=False).logits[0, rows]
        return logits.float()

    def watch_layers(
        self, on_layer: OnLayer, on_experts: OnExperts | None = None
    ) -> AbstractContextManager[None]:
        return watch_layers(self._model, on_layer)
