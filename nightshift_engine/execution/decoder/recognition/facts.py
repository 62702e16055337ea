"""Facts about a decoder: a description of its layers, by the paths of their modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...experts.kernels import RoutingRule
from ...linears.interface import Activation
from ..weights import MlpInput, NormKind


class NotPlain(Exception):
    """The model is not built as the written-out decoder is; the message says where it differs."""


@dataclass(frozen=True, slots=True)
class NormFacts:
    """`core(x) * weight + bias`, where weight is the module's, or 1 + the module's."""

    path: str
    kind: NormKind
    adds_one: bool
    eps: float


@dataclass(frozen=True, slots=True)
class HeadNormFacts:
    norm: NormFacts
    spans_heads: bool
    """One norm over all heads of a token, rather than one per head."""


@dataclass(frozen=True, slots=True)
class RotationFacts:
    rotary: int
    """The index of the model's rotary embedding."""
    is_interleaved: bool
    """Neighbouring elements rotate together, rather than those half a head apart."""


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    query_heads: int
    key_heads: int
    head_dim: int
    linears: tuple[str, ...]
    """Paths of queries, keys and values; or of all three in one."""
    is_grouped: bool
    """The one linear's rows go by key head: its queries, its key, its value."""
    query_norm: HeadNormFacts | None
    key_norm: HeadNormFacts | None
    rotation: RotationFacts | None
    score_factor: float
    """Factor of the scores, beside the scale that the layer asks of attention."""
    output: str

    @property
    def order(self) -> Tensor | None:
        """Packed row i is row `order[i]` of the linears, one after the other. None: i."""
        if not self.is_grouped:
            return None
        heads = torch.arange(self.query_heads + 2 * self.key_heads).view(self.key_heads, -1)
        order = torch.cat([heads[:, :-2].flatten(), heads[:, -2], heads[:, -1]])
        return (order[:, None] * self.head_dim + torch.arange(self.head_dim)).flatten()


@dataclass(frozen=True, slots=True)
class MlpFacts:
    """`down(act(up(x)))`, or with a gate `down(act(gate(x)) * up(x))`."""

    ups: tuple[str, ...]
    """The gate and what it gates; or one linear, which is both where `is_gated`."""
    is_gated: bool
    gate_is_second: bool
    """Whether it is the second half of the one linear that is both."""
    activation: Activation
    down: str

    def order(self, width: int) -> Tensor | None:
        """Packed row i is row `order[i]` of `ups`. None: i. `width` is that of `down`."""
        return torch.arange(2 * width).roll(width) if self.gate_is_second else None


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Tensors by their names within the mixture."""

    weight: str
    bias: str | None
    correction: str | None
    """Added to scores where experts are chosen by them."""
    rule: RoutingRule


@dataclass(frozen=True, slots=True)
class SharedExpertFacts:
    mlp: MlpFacts
    gate: str | None


@dataclass(frozen=True, slots=True)
class MixtureFacts:
    path: str
    router: RouterFacts
    experts: str
    shared: SharedExpertFacts | None


@dataclass(frozen=True, slots=True)
class JoinFacts:
    """The way in which a branch returns to the residual stream: `factor * norm(branch)` is added."""

    norm: NormFacts | None
    factor: float


@dataclass(frozen=True, slots=True)
class LayerFacts:
    input_norm: NormFacts | None
    attention: AttentionFacts
    attention_join: JoinFacts
    mlp_reads: MlpInput
    mlp_norm: NormFacts | None
    mlp: MlpFacts | MixtureFacts | str
    """Or the path of a module that is called as it is."""
    mlp_join: JoinFacts


@dataclass(frozen=True, slots=True)
class PositionFacts:
    """Learned positions: row `position + offset` of a table is added to a token's embedding."""

    module: Any
    offset: int


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    layers: list[Any]
    """The modules, in order."""
    layer_facts: list[LayerFacts]
    embedding: Any
    embedding_factor: float
    positions: PositionFacts | None
    rotaries: list[RotaryCall]
    norm_module: Any
    norm: NormFacts | None
    head: Any
    logit_factor: float
    logit_cap: float


@dataclass(frozen=True, slots=True)
class RotaryCall:
    """A call of a rotary embedding: the module, and its arguments with the positions left open."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: Tensor
    traced: tuple[Tensor, Tensor]
    """The tables of `positions` as the model had them, in its own dtype, on the CPU."""
    device: torch.device
    """The device of the module."""

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[positions, rotating pairs]`, float32, on the module's device."""
        args = tuple(self._replaced(argument, positions) for argument in self.args)
        kwargs = {name: self._replaced(argument, positions) for name, argument in self.kwargs.items()}
        cosine, sine = self.module(*args, **kwargs)
        return half_table(cosine), half_table(sine)

    def _replaced(self, argument: Any, positions: Tensor) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if argument.is_floating_point():  # it only says which dtype
            return torch.zeros(1, device=self.device)
        is_positions = argument.numel() == self.positions.numel()
        return (positions.view(1, -1) if is_positions else argument).to(self.device)


def half_table(table: Tensor) -> Tensor:
    """One entry per pair of what came as `[1, positions, dim]`, twice each or once."""
    table = table.float().reshape(-1, table.shape[-1])
    first, second = table.chunk(2, dim=-1)
    if first.shape == second.shape and first.equal(second):
        return first.contiguous()
    if table.shape[-1] % 2 == 0 and table[:, ::2].equal(table[:, 1::2]):
        return table[:, ::2].contiguous()
    return table.contiguous()
