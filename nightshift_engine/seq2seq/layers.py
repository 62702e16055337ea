"""A decoder with cross-attention, layer by layer, over the submodules of transformers' T5 or BART."""

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoint.kinds import PRE_NORM, T5_TYPES

Module = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The projections of one attention, and their heads."""

    query: Module
    key: Module
    value: Module
    out: Module
    num_heads: int
    head_dim: int
    scale: float

    def heads(self, projected: Tensor) -> Tensor:
        """`[tokens, heads * dim]` to `[tokens, heads, dim]`."""
        return projected.view(-1, self.num_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention, cross-attention and MLP, each with the norm before or after it."""

    self_attention: AttentionHeads
    cross_attention: AttentionHeads
    mlp: Module
    norms: tuple[Module, Module, Module]


class Heads(NamedTuple):
    """The tensors that one attention projected, `[tokens, heads, dim]` each."""

    query: Tensor
    key: Tensor
    value: Tensor


class Attend(Protocol):
    """Attention over paged memory, of one step: `[tokens, heads * dim]`, written to `out` if there is one."""

    def over_output(self, layer: int, heads: Heads, scale: float, out: Tensor | None = None) -> Tensor:
        """Stores keys and values, and attends over what each sequence generated."""

    def over_source(self, layer: int, query: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Attends over the source of each sequence."""


class Seq2seqDecoder(Protocol):
    """A decoder with cross-attention, as a runner calls it."""

    @property
    def position_bias(self) -> Callable[[Tensor], Tensor] | None:
        """Distances back, int64 of any shape, to what is added to attention scores: `[*shape, heads]`."""

    def source_keys_values(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of the encoder's states, by layer; the next layer's may overwrite them."""

    def logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """Logits `[rows, vocabulary]`, float32, of the tokens in `rows`. The next call may overwrite them."""


@dataclass(frozen=True, slots=True)
class CrossDecoder:
    """A `Seq2seqDecoder` of modules of transformers' own."""

    embed: Callable[[Tensor, Tensor], Tensor]
    """Token ids and positions `[tokens]` to `[tokens, hidden]`."""
    layers: tuple[Layer, ...]
    is_pre_norm: bool
    head: Module
    """Hidden states to logits, with all that lies between."""
    position_bias: Callable[[Tensor], Tensor] | None
    """Distances back, int64 of any shape, to what is added to attention scores: `[*shape, heads]`."""

    def source_keys_values(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for layer in self.layers:
            cross = layer.cross_attention
            yield cross.heads(cross.key(hidden)), cross.heads(cross.value(hidden))

    def logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        hidden = self.hidden(token_ids, positions, attend)
        return self.head(hidden[rows]).float()

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """`[tokens]` each to `[tokens, hidden]`."""
        x = self.embed(token_ids, positions)
        for index, layer in enumerate(self.layers):
            own, cross = layer.self_attention, layer.cross_attention

            def attend_output(y: Tensor, index: int = index, own: AttentionHeads = own) -> Tensor:
                heads = Heads(*(own.heads(projection(y)) for projection in (own.query, own.key, own.value)))
                return own.out(attend.over_output(index, heads, own.scale))

            def attend_source(y: Tensor, index: int = index, cross: AttentionHeads = cross) -> Tensor:
                return cross.out(attend.over_source(index, cross.heads(cross.query(y)), cross.scale))

            for part, norm in zip((attend_output, attend_source, layer.mlp), layer.norms, strict=True):
                x = x + part(norm(x)) if self.is_pre_norm else norm(x + part(x))
        return x


def cross_decoder(model: Any) -> CrossDecoder:
    """The decoder of a transformers model of one of `MODEL_TYPES`."""
    return _t5(model) if model.config.model_type in T5_TYPES else _bart(model)


def _bart(model: Any) -> CrossDecoder:
    config, decoder = model.config, model.model.decoder
    table, scale = positions_of(config, decoder), embedding_scale(config)
    embeddings, embedding_norm = decoder.embed_tokens.weight, getattr(decoder, "layernorm_embedding", None)
    last_norm = getattr(decoder, "layer_norm", None)
    bias = getattr(model, "final_logits_bias", None)

    def embed(token_ids: Tensor, positions: Tensor) -> Tensor:
        x = F.embedding(token_ids, embeddings) * scale + table[positions]
        return x if embedding_norm is None else embedding_norm(x)

    def head(x: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(x if last_norm is None else last_norm(x))
        return logits if bias is None else logits.add_(bias)

    layers = [
        Layer(
            _bart_attention(layer.self_attn),
            _bart_attention(layer.encoder_attn),
            partial(_bart_mlp, layer),
            (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm),
        )
        for layer in decoder.layers
    ]
    is_pre_norm = config.model_type in PRE_NORM
    return CrossDecoder(embed, tuple(layers), is_pre_norm, head, None)


def _bart_mlp(layer: Any, x: Tensor) -> Tensor:
    out: Tensor = layer.fc2(layer.activation_fn(layer.fc1(x)))
    return out


def embedding_scale(config: Any) -> float:
    """Factor of token embeddings, in BART's architecture."""
    return math.sqrt(config.d_model) if config.scale_embedding else 1.0


def source_positions(config: Any, source: Seq[int]) -> Tensor:
    """Positions of each token, `[tokens]`; -1: it has none."""
    if config.model_type != "m2m_100":
        return torch.arange(len(source))
    is_counted = (torch.tensor(source) != config.pad_token_id).long()
    positions: Tensor = is_counted.cumsum(0) * is_counted - 1
    return positions


def positions_of(config: Any, coder: Any) -> Tensor:
    """Positions of an encoder or a decoder, one row per position, from the first."""
    module = coder.embed_positions
    if config.model_type == "m2m_100":  # sinusoids, counted from behind the padding's index
        rows: Tensor = module.weights[config.pad_token_id + 1 :]
        return rows
    weight: Tensor = module.weight.detach()
    return weight[getattr(module, "offset", 0) :]


def _bart_attention(module: Any) -> AttentionHeads:
    return AttentionHeads(
        module.q_proj,
        module.k_proj,
        module.v_proj,
        module.out_proj,
        module.num_heads,
        module.head_dim,
        module.head_dim**-0.5,
    )


def _t5(model: Any) -> CrossDecoder:
    config, decoder = model.config, model.decoder
    embeddings = decoder.embed_tokens.weight
    first = decoder.block[0].layer[0].SelfAttention
    bias = first.relative_attention_bias.weight.detach()
    scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0

    def embed(token_ids: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(token_ids, embeddings)

    def head(x: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(decoder.final_layer_norm(x) * scale)
        return logits

    def position_bias(distances: Tensor) -> Tensor:
        buckets = first._relative_position_bucket(
            -distances,
            bidirectional=False,
            num_buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
        )
        return F.embedding(buckets, bias)

    layers = [
        Layer(
            _t5_attention(own.SelfAttention),
            _t5_attention(cross.EncDecAttention),
            mlp.DenseReluDense,
            (own.layer_norm, cross.layer_norm, mlp.layer_norm),
        )
        for own, cross, mlp in (block.layer for block in decoder.block)
    ]
    return CrossDecoder(embed, tuple(layers), True, head, position_bias)


def _t5_attention(module: Any) -> AttentionHeads:
    """T5 folds the scale into its weights."""
    return AttentionHeads(
        module.q, module.k, module.v, module.o, module.n_heads, module.key_value_proj_dim, 1.0
    )
