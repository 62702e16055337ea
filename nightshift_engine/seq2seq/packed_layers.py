"""Layers of BART's architecture and its relatives' by our own kernels: packed linears, the activation inside.

For encoder and decoder alike; attention is left to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.kinds.seq2seq_types import PRE_NORM
from ..encoders.stream import RowNorm, Stream, buffer_for, packed
from ..execution.decoder.buffers import Buffers
from ..execution.decoder.kernels import DecoderKernels
from ..execution.linears.activations import activation_of
from ..execution.linears.interface import Linear, Pack
from .layers import embedding_scale, positions_of


class PackedRows:
    """The rows of a pass, and how branches of a layer join them: with the norm before or after."""

    def __init__(self, stream: Stream, *, is_pre_norm: bool) -> None:
        self.stream = stream
        self._is_pre_norm = is_pre_norm
        self._rows = None if is_pre_norm else stream.rounded()

    def join(self, branch: Callable[[Tensor], Tensor], linear: Linear, norm: RowNorm) -> None:
        """Add what `linear` makes of `branch`."""
        rows = self.stream.normed(norm) if self._rows is None else self._rows
        self.stream.add(linear, branch(rows))
        if self._rows is not None:
            self._rows = self.stream.norm(norm)


@dataclass(frozen=True, slots=True)
class SelfAttention:
    qkv: Linear
    output: Linear
    norm: RowNorm
    head_dim: int

    @classmethod
    def of(cls, pack: Pack, module: Any, norm: Any) -> SelfAttention:
        qkv = packed(pack, module.q_proj, module.k_proj, module.v_proj)
        return cls(qkv, packed(pack, module.out_proj), RowNorm(norm), module.head_dim)

    @property
    def linears(self) -> list[Linear]:
        return [self.qkv, self.output]


@dataclass(frozen=True, slots=True)
class CrossAttention:
    query: Linear
    source: Linear
    """To keys and values."""
    output: Linear
    norm: RowNorm
    head_dim: int

    @classmethod
    def of(cls, pack: Pack, module: Any, norm: Any) -> CrossAttention:
        source = packed(pack, module.k_proj, module.v_proj)
        query, output = packed(pack, module.q_proj), packed(pack, module.out_proj)
        return cls(query, source, output, RowNorm(norm), module.head_dim)

    @property
    def linears(self) -> list[Linear]:
        return [self.query, self.source, self.output]


@dataclass(frozen=True, slots=True)
class Mlp:
    up: Linear
    """With the activation."""
    down: Linear
    norm: RowNorm

    @classmethod
    def of(cls, pack: Pack, layer: Any) -> Mlp:
        up = pack(layer.fc1.weight, layer.fc1.bias, activation=activation_of(layer.activation_fn))
        return cls(up, packed(pack, layer.fc2), RowNorm(layer.final_layer_norm))

    @property
    def linears(self) -> list[Linear]:
        return [self.up, self.down]

    def join(self, rows: PackedRows, buffers: Buffers) -> None:
        def inner(x: Tensor) -> Tensor:
            out = buffer_for(buffers, "inner", x, self.up.out_features)
            self.up.store(x, out)
            return out

        rows.join(inner, self.down, self.norm)


class Embedding:
    """Of tokens and positions, with the norm that BART has behind it."""

    def __init__(self, module: Any, config: Any, buffers: Buffers) -> None:
        """`module`: an encoder or a decoder of transformers."""
        self._table, self._scale = module.embed_tokens.weight.detach(), embedding_scale(config)
        positions = positions_of(config, module).float()
        self._positions = torch.cat([torch.zeros(1, positions.shape[1]), positions])  # the first: of none
        norm = getattr(module, "layernorm_embedding", None)
        self._norm = None if norm is None else RowNorm(norm)
        self._kernels, self._buffers = DecoderKernels(), buffers

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """`[tokens, hidden]`, float32, of `[tokens]` each; the next call overwrites them.

        A token without a position has -1.
        """
        out = self._buffers.get("hidden", len(token_ids), self._table.shape[1], torch.float32)
        self._kernels.gather_rows(self._table, token_ids, out, factor=self._scale)
        self._kernels.gather_rows(self._positions, positions + 1, out, adds=True)
        if self._norm is not None:
            self._norm.store(out, out)
        return out


def is_pre_norm(config: Any) -> bool:
    return config.model_type in PRE_NORM


def all_linears(*parts: SelfAttention | CrossAttention | Mlp) -> list[Linear]:
    return [*chain.from_iterable(part.linears for part in parts)]
