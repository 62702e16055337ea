"""Packed layers that stand in for those of transformers' modules, where a model runs through these."""

from typing import Any

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from .device.held_weights import held_weights, narrow_of
from .device.mapped_files import MappedFiles
from .experts.packed import is_experts, pack_experts
from .linears.interface import Linear, Packing

PACKED_INPUTS_MIN = 16
"""Smaller layers gain nothing."""


class PackedLinear(torch.nn.Module):
    """Stands in for a `torch.nn.Linear` whose weight has been packed: of its shape and dtype, but NaN."""

    def __init__(self, linear: Linear, packed_dtype: torch.dtype, dtype: torch.dtype) -> None:
        super().__init__()
        self._linear = linear
        self._packed_dtype = packed_dtype
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.full((), torch.nan, dtype=dtype).expand(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`, in the dtype of `x`."""
        rows = x.reshape(-1, self._linear.in_features).to(self._packed_dtype).contiguous()
        out = torch.empty(len(rows), self._linear.out_features, dtype=self._packed_dtype)
        self._linear.store(rows, out)
        return out.to(x.dtype).view(*x.shape[:-1], self._linear.out_features)


def pack_modules(module: Any, packing: Packing, dtype: torch.dtype, *, head: Any = None) -> int:
    """Replaces linear layers and experts by packed ones, freeing their weights; returns how many."""
    shared = {
        id(embedding.weight) for embedding in module.modules() if isinstance(embedding, torch.nn.Embedding)
    }
    files, count = MappedFiles(), 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            packed = _packed(child, packing, dtype, is_head=child is head)
            if packed is not None:
                if id(getattr(child, "weight", None)) not in shared:
                    free(child, files)
                setattr(parent, name, packed)
                count += 1
    return count


def _packed(child: Any, packing: Packing, dtype: torch.dtype, *, is_head: bool) -> torch.nn.Module | None:
    """The module that stands in for another; None if that stays."""
    packed_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32  # all the kernels know
    if type(child) in (torch.nn.Linear, Conv1D) and child.weight.dtype == dtype:
        weight = weight_of(child).contiguous()
        if weight.shape[1] < PACKED_INPUTS_MIN:
            return None
        pack = packing.head if is_head else packing.layers
        return PackedLinear(pack(weight, bias_of(child)), packed_dtype, dtype)
    if packing.experts is not None and is_experts(child) and child.down_proj.dtype == packed_dtype:
        return pack_experts(child, packing.experts)
    return None


def weight_of(linear: Any) -> Tensor:
    """`[out, in]`, of a `torch.nn.Linear` or of GPT-2's Conv1D, which keeps it the other way round.

    One that is held narrow is dequantised.
    """
    weight: Tensor = linear.weight.detach()
    if (narrow := narrow_of(linear)) is not None:
        return narrow.dequantized(weight.dtype)
    return weight.T if type(linear) is Conv1D else weight


def shape_of(linear: Any) -> tuple[int, int]:
    """Outputs and inputs of such a layer."""
    rows, columns = linear.weight.shape
    return (columns, rows) if type(linear) is Conv1D else (rows, columns)


def bias_of(linear: Any) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


def free(module: Any, files: MappedFiles) -> None:
    """Gives up the memory of a module's own weights, which have been packed. Vectors stay."""
    held_weights(module).clear()
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.dim() > 1:
            files.release(parameter)
            setattr(module, name, torch.nn.Parameter(parameter.new_empty(0), requires_grad=False))
