"""Encoder-decoders of BART's architecture and its relatives' by our own kernels, without padding.

A step of tokens that all have logits is written down once for its size (`native_calls.py`).
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.kinds import PRE_NORM, T5_TYPES
from ..execution.attention.input_attention import InputAttention, RaggedAttention
from ..execution.decoder.buffers import Buffers, WrittenSteps
from ..execution.decoder.kernels import DecoderKernels
from ..execution.decoder.native_operations import DTYPES
from ..execution.linears.interface import Linear, Pack, Packing, activation_of
from ..execution.packed_layers import (
    LayerParts,
    PackedLayer,
    PackedMlp,
    PackedNorm,
    PackedRows,
    SelfAttention,
    Stream,
    buffer_for,
    free_linears,
    packed,
    stored,
)
from .layers import Attend, Heads, embedding_scale, positions_of, source_positions


def _parts(layer: Any) -> LayerParts:
    own = layer.self_attn
    return LayerParts(
        *(own.q_proj, own.k_proj, own.v_proj, own.out_proj, layer.self_attn_layer_norm),
        *(layer.fc1, layer.activation_fn, layer.fc2, layer.final_layer_norm),
    )


class CrossAttention:
    """The linear layers of a decoder's attention over the source."""

    def __init__(self, pack: Pack, module: Any, norm: Any) -> None:
        self.source = packed(pack, module.k_proj, module.v_proj)
        """Makes keys and values of the encoder's states."""
        self.query, self.output = packed(pack, module.q_proj), packed(pack, module.out_proj)
        self.norm = PackedNorm(norm)

    @property
    def linears(self) -> list[Linear]:
        return [self.query, self.source, self.output]


class PackedEmbedding:
    """Embeddings of tokens and positions, with the norm that BART has behind them."""

    def __init__(self, module: Any, config: Any, buffers: Buffers) -> None:
        """`module`: an encoder or a decoder of transformers."""
        self._table, self._scale = module.embed_tokens.weight.detach(), embedding_scale(config)
        positions = positions_of(config, module).float()
        self._positions = torch.cat([torch.zeros(1, positions.shape[1]), positions])  # the first: of none
        norm = getattr(module, "layernorm_embedding", None)
        self._norm = None if norm is None else PackedNorm(norm)
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


class PackedEncoder:
    """An encoder with packed layers. Not thread-safe: its buffers are kept from call to call."""

    def __init__(self, model: Any, pack: Pack) -> None:
        """`model` is transformers' encoder-decoder."""
        encoder = model.model.encoder
        self._config, self._dtype = model.config, model.dtype
        self._num_heads = encoder.layers[0].self_attn.num_heads
        self._buffers = Buffers()
        self._embed = PackedEmbedding(encoder, model.config, self._buffers)
        self._layers = [PackedLayer(_parts(layer), pack) for layer in encoder.layers]
        norm = getattr(encoder, "layer_norm", None)
        self._norm = None if norm is None else PackedNorm(norm)

    def __call__(self, sources: Seq[Seq[int]]) -> Tensor:
        """`[tokens, hidden]`, one source's after another's; the next call overwrites them."""
        ids = torch.tensor([*chain.from_iterable(sources)])
        positions = torch.cat([source_positions(self._config, source) for source in sources])
        attention = RaggedAttention(torch.tensor([0, *accumulate(map(len, sources))]), self._num_heads)
        stream = Stream(self._embed(ids, positions), self._dtype, self._buffers)
        rows = PackedRows(stream, is_pre_norm=_is_pre_norm(self._config))
        for layer in self._layers:
            layer(rows, attention, self._buffers)
        return stream.rounded() if self._norm is None else stream.normed(self._norm)


class PackedDecoder:
    """A decoder with packed layers. Not thread-safe: its buffers are kept from call to call."""

    position_bias = None

    def __init__(self, model: Any, packing: Packing) -> None:
        """`model` is transformers' encoder-decoder."""
        decoder, pack = model.model.decoder, packing.layers
        self._dtype = model.dtype
        self._buffers = Buffers()
        self._steps = WrittenSteps(self._buffers)
        self._embed = PackedEmbedding(decoder, model.config, self._buffers)
        self._is_pre_norm = _is_pre_norm(model.config)
        self._num_heads = decoder.layers[0].self_attn.num_heads
        self._layers = [
            (
                SelfAttention(_parts(layer), pack),
                CrossAttention(pack, layer.encoder_attn, layer.encoder_attn_layer_norm),
                PackedMlp(_parts(layer), pack),
            )
            for layer in decoder.layers
        ]
        self._norm = PackedNorm(getattr(decoder, "layer_norm", None))
        bias = getattr(model, "final_logits_bias", None)
        self._head = packing.head(model.lm_head.weight, None if bias is None else bias[0])
        linears = [
            self._head,
            *chain.from_iterable(
                (*own.linears, *cross.linears, *mlp.linears) for own, cross, mlp in self._layers
            ),
        ]
        self._can_be_written_down = all(linear.can_be_written_down for linear in linears)

    def source_keys_values(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, `[tokens, heads, dim]` each; the next layer's overwrite them."""
        for _, cross, _ in self._layers:
            key_value = stored(cross.source, hidden, self._buffers, "source")
            key, value = key_value.view(len(hidden), 2, self._num_heads, -1).unbind(1)
            yield key, value

    def logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """`[rows, vocabulary]`, float32, of the tokens `rows`; the next call overwrites them."""
        hidden = self._embed(token_ids, positions)
        kept = self._buffers.get("logits_rows", len(rows), 1, torch.int64)[:, 0].copy_(rows)
        logits = self._buffers.get("logits", len(rows), self._head.out_features, torch.float32)
        compute = partial(self._compute, hidden, kept, logits, attend)
        if len(rows) == len(token_ids) and self._can_be_written_down:
            self._steps.repeat(len(rows), (attend,), compute)
        else:
            compute()
        return logits

    def _compute(self, hidden: Tensor, rows: Tensor, logits: Tensor, attend: Attend) -> None:
        stream = Stream(hidden, self._dtype, self._buffers)
        joined = PackedRows(stream, is_pre_norm=self._is_pre_norm)
        for index, (own, cross, mlp) in enumerate(self._layers):
            attended = self._over_output(index, own, attend, joined.read(own.norm))
            joined.join(own.output, attended, own.norm)
            attended = self._over_source(index, cross, attend, joined.read(cross.norm))
            joined.join(cross.output, attended, cross.norm)
            mlp(joined, self._buffers)
        last = self._buffers.get("last", len(rows), hidden.shape[1], self._dtype, is_spaced=True)
        self._norm.store(stream.sums, last, rows)
        self._head.store(last, logits)

    def _over_output(self, index: int, own: SelfAttention, attend: Attend, x: Tensor) -> Tensor:
        qkv = stored(own.qkv, x, self._buffers, "qkv")
        heads = Heads(*qkv.view(len(qkv), 3, self._num_heads, -1).unbind(1))
        out = buffer_for(self._buffers, "context", x, own.output.in_features)
        return attend.over_output(index, heads, heads.query.shape[2] ** -0.5, out)

    def _over_source(self, index: int, cross: CrossAttention, attend: Attend, x: Tensor) -> Tensor:
        query = stored(cross.query, x, self._buffers, "query").view(len(x), self._num_heads, -1)
        out = buffer_for(self._buffers, "context", x, cross.output.in_features)
        return attend.over_source(index, query, query.shape[2] ** -0.5, out)


def _is_pre_norm(config: Any) -> bool:
    return config.model_type in PRE_NORM


def can_be_packed(model: Any) -> bool:
    """Whether a transformers model on a CPU has BART's architecture, and this machine the kernels for it."""
    if model.config.model_type in T5_TYPES or model.dtype not in DTYPES:
        return False
    layers = [*model.model.encoder.layers, *model.model.decoder.layers]
    has_kernels = DecoderKernels.are_available() and InputAttention.is_available()
    return has_kernels and all(activation_of(layer.activation_fn) is not None for layer in layers)


@torch.inference_mode()
def pack_model(model: Any, packing: Packing) -> tuple[PackedEncoder, PackedDecoder]:
    """Frees the memory of the model's own linear layers, but for a head that shares its weight."""
    encoder, decoder = PackedEncoder(model, packing.layers), PackedDecoder(model, packing)
    embeddings = (module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    free_linears(model.modules(), frozenset(id(embedding.weight) for embedding in embeddings))
    return encoder, decoder
