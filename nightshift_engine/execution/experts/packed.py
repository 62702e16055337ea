"""The experts of a mixture, packed: tokens are sorted by expert, and all experts are computed in one call.

Stands in for the experts' module of transformers, whose router stays as it is.
"""

from typing import Any

import torch
from torch import Tensor

from ..linears.interface import GroupedLinear, PackGrouped, activation_of
from .kernels import ExpertKernels

TRIED_TOKENS = 5
RELATIVE_ERROR_MAX = 0.1
"""Error that rounding to int8 may cost; anything computed otherwise is off by order one."""


class PackedExperts(torch.nn.Module):
    """`sum over choices of weight * down(act(gate(x)) * up(x))`, by the experts chosen."""

    def __init__(self, num_experts: int, up: GroupedLinear, down: GroupedLinear) -> None:
        super().__init__()
        self.num_experts, self.up, self.down = num_experts, up, down
        self._kernels = ExpertKernels()

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """`[tokens, hidden]`, and for each token its choices `[tokens, choices]` and their weights."""
        rows, chosen = top_k_index.numel(), top_k_index.contiguous()
        starts, places = torch.empty(self.num_experts + 1, dtype=torch.int64), torch.empty_like(chosen)
        x = hidden_states.new_empty(rows, hidden_states.shape[1])
        self._kernels.sort(hidden_states.contiguous(), chosen, x, starts, places)
        inner = x.new_empty(rows, self.up.out_features)
        self.up.store(x, starts, inner)
        y = torch.empty(rows, self.down.out_features)
        self.down.store(inner, starts, y)
        out = torch.empty(len(hidden_states), y.shape[1])
        self._kernels.combine(y, places, top_k_weights.float().contiguous(), out)
        return out.to(hidden_states.dtype)


def pack_experts(module: Any, pack: PackGrouped) -> PackedExperts | None:
    """The experts of a module packed, if they are gated MLPs whose weights lie side by side; else None."""
    if not is_experts(module):
        return None
    gate = activation_of(module.act_fn)
    if gate is None or len(module.gate_up_proj) > ExpertKernels().experts_max:
        return None
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    packed_up, packed_down = pack(gate_up, gate=gate), pack(down)
    if packed_up is None or packed_down is None:
        return None
    packed = PackedExperts(len(gate_up), packed_up, packed_down)
    return packed if _computes_the_same(packed, module, gate_up) else None


def is_experts(module: Any) -> bool:
    """Whether a module holds experts as transformers' experts interface describes them, and no more."""
    flags = ("has_gate", "is_concatenated")
    not_flags = ("has_bias", "has_post_expert_norm")
    return (
        set(dict(module.named_parameters(recurse=False))) == {"gate_up_proj", "down_proj"}
        and all(getattr(module, name, False) for name in flags)
        and not any(getattr(module, name, False) for name in not_flags)
        and callable(getattr(module, "act_fn", None))
    )


def _computes_the_same(packed: PackedExperts, module: Any, gate_up: Tensor) -> bool:
    num_experts, _, hidden = gate_up.shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TRIED_TOKENS, hidden, generator=generator).to(gate_up.dtype)
    choices = min(2, num_experts)
    index = torch.stack([torch.randperm(num_experts, generator=generator)[:choices] for _ in x])
    weights = torch.rand(TRIED_TOKENS, choices, generator=generator).to(gate_up.dtype)
    wanted, got = module(x, index, weights).float(), packed(x, index, weights).float()
    return bool((got - wanted).norm() <= RELATIVE_ERROR_MAX * wanted.norm())
