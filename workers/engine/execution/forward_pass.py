"""A step's token ids to logits: through transformers' own modules here, or written out in `decoder/`."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from .attention.interface import AttentionStep, paged_step
from .linears.interface import Linear, Packing
from .mapped_files import MappedFiles
from .step_layout import StepInputs

PACKED_INPUTS_MIN = 16
"""Smaller layers gain nothing."""


class ForwardPass(Protocol):
    """A model, as the runner calls it."""

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        """Logits `[rows, vocab]`, float32, of `inputs.logits_rows`; valid until the next call."""


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


class PackedLinear(torch.nn.Module):
    """Stands in for a `torch.nn.Linear` whose weight has been packed."""

    def __init__(self, linear: Linear, packed_dtype: torch.dtype) -> None:
        super().__init__()
        self._linear = linear
        self._packed_dtype = packed_dtype

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`, in the dtype of `x`."""
        rows = x.reshape(-1, self._linear.in_features).to(self._packed_dtype).contiguous()
        out = torch.empty(len(rows), self._linear.out_features, dtype=self._packed_dtype)
        self._linear.store(rows, out)
        return out.to(x.dtype).view(*x.shape[:-1], self._linear.out_features)


def pack_linears(model: Any, packing: Packing) -> int:
    """Replace the model's linear layers by packed ones, freeing their weights one by one; return how many.

    Layers that share their weight with an embedding keep that one too.
    """
    packed_dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32  # all the kernels know
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    head, files, count = model.get_output_embeddings(), MappedFiles(), 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) not in (torch.nn.Linear, Conv1D):
                continue
            weight = child.weight.detach()
            if type(child) is Conv1D:  # GPT-2's linear layer, whose weight is the other way round
                weight = weight.T.contiguous()
            if weight.shape[1] < PACKED_INPUTS_MIN:
                continue
            bias = None if child.bias is None else child.bias.detach()
            pack = packing.head if child is head else packing.layers
            packed = PackedLinear(pack(weight, bias), packed_dtype)
            if id(child.weight) not in shared:
                files.release(child.weight)
                child.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            setattr(parent, name, packed)
            count += 1
    return count
