"""Multi-head latent attention (DeepSeek) over latent KV: keys and values are not expanded.

Head h's key is `up_key[h] @ latent` beside a rotated part that heads share, its value `up_value[h] @ latent`.
So the query is multiplied instead of every key, and the weighted sum instead of every value. To the back ends
that is one KV head, whose value is the latent vector and whose key is that with the rotated part.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor

from ..packed_modules import weight_of

LATENT_NAME = "nightshift_latent"
"""Attribute of an attention module that gives latent KV to the hook."""


class LatentHeads:
    """The weights between heads and the latent vector: those of `kv_b_proj`, apart."""

    def __init__(self, module: Any) -> None:
        rank, key_dim, value_dim = module.kv_lora_rank, module.qk_nope_head_dim, module.v_head_dim
        weight = weight_of(module.kv_b_proj).view(-1, key_dim + value_dim, rank)
        self.key_dim = key_dim
        self.up_key = weight[:, :key_dim].contiguous()  # [heads, key_dim, rank]
        self.down_value = weight[:, key_dim:].transpose(1, 2).contiguous()  # [heads, rank, value_dim]

    def query(self, query: Tensor) -> Tensor:
        """`[heads, tokens, key_dim + rotated]` to `[heads, tokens, rank + rotated]`."""
        plain, rotated = query[..., : self.key_dim], query[..., self.key_dim :]
        return torch.cat([torch.bmm(plain, self.up_key), rotated], dim=-1)

    def output(self, attended: Tensor) -> Tensor:
        """`[tokens, heads, rank]` to `[tokens, heads, value_dim]`, contiguous."""
        return torch.bmm(attended.transpose(0, 1), self.down_value).transpose(0, 1).contiguous()


def keep_latent(model: torch.nn.Module) -> int:
    """Lets modules that have latent KV give it to the hook, without `kv_b_proj`; returns how many."""
    count = 0
    for module in model.modules():
        if _has_latent_kv(module):
            setattr(module, LATENT_NAME, LatentHeads(module))
            module.expand_kv = MethodType(_as_they_are, module)  # type: ignore[assignment]
            module.kv_b_proj = torch.nn.Identity()
            count += 1
    return count


def expanded_only(model: torch.nn.Module) -> Any:
    """An attention module that has latent KV and would give it expanded; None if there is none."""
    return next((module for module in model.modules() if _expands_kv(module)), None)


def widest_latent(model: torch.nn.Module) -> int:
    """Width of the widest latent key in `model`, 0 if it has none."""
    return max((latent_dims(module) for module in model.modules() if _has_latent_kv(module)), default=0)


def latent_dims(module: Any) -> int:
    """Numbers of latent KV of one token: the latent vector and the rotated part."""
    return int(module.kv_lora_rank) + int(module.qk_rope_head_dim)


def _expands_kv(module: Any) -> bool:
    return (
        isinstance(getattr(module, "kv_lora_rank", None), int)
        and isinstance(getattr(module, "kv_b_proj", None), torch.nn.Module)
        and not hasattr(module, LATENT_NAME)
    )


def _as_they_are(module: Any, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """`[1, 1, tokens, ...]` each: key and value of the one head."""
    return torch.cat([latent, rotated], dim=-1), latent


def _has_latent_kv(module: Any) -> bool:
    names = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    linear = getattr(module, "kv_b_proj", None)
    return (
        callable(getattr(module, "expand_kv", None))
        and all(isinstance(getattr(module, name, None), int) for name in names)
        and isinstance(linear, torch.nn.Linear)
        and linear.bias is None
    )
