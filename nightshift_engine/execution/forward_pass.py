"""A step's token ids to logits: through transformers' own modules here, or written out in `decoder/`."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from .attention.interface import AttentionStep, paged_step
from .layer_hooks import OnExperts, OnLayer, watch_layers
from .step_layout import StepInputs


class ForwardPass(Protocol):
    """A model, as the runner calls it."""

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        """Logits `[rows, vocab]`, float32, of `inputs.logits_rows`; valid until the next call."""

    def watch_layers(
        self, on_layer: OnLayer, on_experts: OnExperts | None = None
    ) -> AbstractContextManager[None]:
        """Put what enters each layer through `on_layer`, in calls made meanwhile.

        They compute all rows in all layers, module by module or layer by layer. Where our kernels choose
        experts, the choice goes through `on_experts`; modules choose by functions of torch.
        """


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
