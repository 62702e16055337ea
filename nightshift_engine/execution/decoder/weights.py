"""Packed weights of a written-out decoder of any family, and how they are connected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..attention.interface import LayerCall
from ..experts.kernels import RoutingRule
from ..linears.interface import GroupedLinear, Linear

ROPE_ROWS = 1024
"""Tables grow by whole multiples of this many positions."""
STATIC_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}
"""Rotary embeddings that depend on the position alone, so that they can be tabulated."""


class Rotary:
    """`tables` gives cosines and sines `[positions, pairs]` of an int64 tensor of positions."""

    def __init__(self, tables: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self._tables = tables
        self.cosine, self.sine = self._table(ROPE_ROWS)

    def grow_to(self, num_positions: int) -> None:
        """Has at least `num_positions` rows in `cosine` and `sine`; they move where they grow."""
        if num_positions > len(self.cosine):
            rows = max(num_positions, 2 * len(self.cosine))
            self.cosine, self.sine = self._table(-(-rows // ROPE_ROWS) * ROPE_ROWS)

    def _table(self, num_positions: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            cosine, sine = self._tables(torch.arange(num_positions))
        return cosine.contiguous(), sine.contiguous()


NormKind = Literal["rms", "layer"]
MlpInput = Literal["sum", "input", "attention's input"]
"""The tensor that an MLP, or the norm before it, reads: the stream after attention has joined, or before it,
or the very input of attention, norm included."""


@dataclass(frozen=True, slots=True)
class Norm:
    kind: NormKind
    weight: Tensor | None  # float32, as is the bias
    bias: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm over the elements of each head, or over all heads of a token; its weight may differ by head."""

    norm: Norm
    spans_heads: bool


@dataclass(frozen=True, slots=True)
class Rotation:
    rotary: Rotary
    is_interleaved: bool
    """Neighbouring elements rotate together, rather than those half a head apart."""


@dataclass(frozen=True, slots=True)
class Attention:
    call: LayerCall
    query_heads: int
    key_heads: int
    head_dim: int
    qkv: Linear
    """All queries, then all keys, then all values."""
    query_norm: HeadNorm | None
    key_norm: HeadNorm | None
    rotation: Rotation | None
    output: Linear


@dataclass(frozen=True, slots=True)
class Mlp:
    up: Linear
    """Includes the activation, and the gate if there is one."""
    down: Linear

    @property
    def linears(self) -> list[Linear | GroupedLinear]:
        return [self.up, self.down]


@dataclass(frozen=True, slots=True)
class Router:
    linear: Linear
    """Makes a logit per expert."""
    logits_dtype: torch.dtype
    """Dtype to which they are rounded before anything is chosen by them."""
    correction: Tensor | None  # [experts], float32
    rule: RoutingRule


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An MLP beside the experts that are chosen, for all tokens."""

    mlp: Mlp
    gate: Linear | None
    """Makes one number, whose sigmoid it is multiplied by."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts whose weighted sum is a token's output."""

    router: Router
    up: GroupedLinear
    """Includes the activation and the gate, as `Mlp.up`."""
    down: GroupedLinear
    shared: SharedExpert | None

    @property
    def linears(self) -> list[Linear | GroupedLinear]:
        linears: list[Linear | GroupedLinear] = [self.router.linear, self.up, self.down]
        if self.shared is not None:
            linears += [self.shared.mlp.up, self.shared.mlp.down]
            linears += [self.shared.gate] if self.shared.gate is not None else []
        return linears


@dataclass(frozen=True, slots=True)
class ModuleMlp:
    """transformers' own module, where it is of a kind that is not written out."""

    module: Any


@dataclass(frozen=True, slots=True)
class Join:
    """The way in which a branch returns to the residual stream: `factor * norm(branch)` is added."""

    norm: Norm | None
    factor: float


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    input_norm: Norm | None
    attention: Attention
    attention_join: Join
    mlp_reads: MlpInput
    mlp_norm: Norm | None
    mlp: Mlp | Mixture | ModuleMlp
    mlp_join: Join

    @property
    def linears(self) -> list[Linear | GroupedLinear]:
        of_mlp = [] if isinstance(self.mlp, ModuleMlp) else self.mlp.linears
        return [self.attention.qkv, self.attention.output, *of_mlp]


@dataclass(frozen=True, slots=True)
class Embedding:
    table: Tensor  # [vocab, hidden], float32 or bfloat16
    factor: float
    positions: Tensor | None  # [positions, hidden], added

    @property
    def hidden(self) -> int:
        return self.table.shape[1]


@dataclass(frozen=True, slots=True)
class Head:
    """Makes logits of the residual stream: `cap * tanh(factor * y / cap)`, or `factor * y` where cap is 0."""

    norm: Norm | None
    linear: Linear
    factor: float
    cap: float


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Embedding
    layers: list[DecoderLayer]
    head: Head

    @property
    def rotaries(self) -> list[Rotary]:
        """The distinct rotary embeddings."""
        rotations = (layer.attention.rotation for layer in self.layers)
        return list(
            {id(rotation.rotary): rotation.rotary for rotation in rotations if rotation is not None}.values()
        )
