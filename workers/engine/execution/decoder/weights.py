"""What a written-out decoder consists of: its dimensions, and each layer's packed weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..attention.interface import LayerCall
from ..linears.interface import Linear


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    call: LayerCall
    input_norm: Tensor  # [hidden], float32, as are all norms
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderShape:
    hidden: int
    query_heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float

    @property
    def qkv(self) -> int:
        return (self.query_heads + 2 * self.key_heads) * self.head_dim
