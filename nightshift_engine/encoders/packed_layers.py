"""Packed layers of models built like BERT: RoBERTa, XLM-RoBERTa, ELECTRA, CamemBERT, DistilBERT."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Outputs

from ..core.roofline import EncoderRoofline, EncoderWork
from ..execution.attention.input_attention import attention_over
from ..execution.decoder.buffers import Buffers
from ..execution.linears.interface import Pack
from ..execution.linears.packing import fastest_pack
from ..execution.packed_layers import (
    DTYPES,
    PASS_ROWS,
    LayerParts,
    PackedRows,
    Stream,
    free_linears,
    pack_layers,
)
from ..loading.device_limits import measure_limits

log = logging.getLogger(__name__)


class PackedTextLayers:
    """All layers of one encoder. Not thread-safe: its buffers are kept from call to call."""

    def __init__(self, model: Any, pack: Pack, *, reads_first: bool = False) -> None:
        self._embed: Any = model.embeddings
        self._dtype: torch.dtype = model.dtype
        self._project: Any = getattr(model, "embeddings_project", None)
        self._num_heads = int(model.config.num_attention_heads)
        self._layers = pack_layers([*map(_parts, _layers(model))], pack, reads_first=reads_first)
        self._reads_first = reads_first
        self._buffers = Buffers()

    @classmethod
    def pack(cls, model: Any, *, reads_first: bool = False) -> PackedTextLayers | None:
        """Packs a model, or returns None. With `reads_first`, the last layer computes first tokens alone."""
        dtype = DTYPES.get(model.dtype)
        if dtype is None or model.device.type != "cpu" or getattr(model.config, "is_decoder", False):
            return None
        try:
            first = _layers(model)[0]
            rows, columns = _parts(first).up.weight.shape
            if not (_is_like_bert(first) and _has_layers_alone(model)):
                return None
            pack, _ = fastest_pack(dtype, columns, rows, PASS_ROWS)
            return cls(model, pack, reads_first=reads_first)
        except (AttributeError, IndexError, LookupError, TypeError) as error:
            log.debug("layers are not packed: %r", error)
            return None

    def __call__(self, input_ids: Tensor, mask: Tensor, type_ids: Tensor | None = None) -> Tensor:
        """Vectors of tokens `[inputs, tokens, dimensions]`, of the first token alone with `reads_first`."""
        types = {} if type_ids is None else {"token_type_ids": type_ids}
        hidden: Tensor = self._embed(input_ids=input_ids, **types)
        if self._project is not None:
            hidden = self._project(hidden)
        attention = attention_over(mask.bool(), self._num_heads, self._dtype)
        stream = Stream(attention.rows_of(hidden), self._dtype, self._buffers)
        rows = PackedRows(stream, is_pre_norm=False)
        for layer in self._layers:
            rows = layer(rows, attention, self._buffers)
        return rows.vectors[:, None] if self._reads_first else attention.padded(rows.vectors)

    def free_originals(self, model: Any) -> None:
        """Gives up the memory of the linear layers that were packed."""
        free_linears(module for layer in _layers(model) for module in layer.modules())


class PackedBase(torch.nn.Module):
    """Packed layers in the place of the base model of a classifier, whose head stays transformers' own."""

    def __init__(self, layers: PackedTextLayers, pooler: Any) -> None:
        """`pooler`: the base model's, which a head may read; None: it has none."""
        super().__init__()
        self._layers = layers
        self._pooler = pooler

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        **_: object,
    ) -> Outputs:
        hidden = self._layers(input_ids, attention_mask, token_type_ids)
        pooled = None if self._pooler is None else self._pooler(hidden)
        return Outputs(last_hidden_state=hidden, pooler_output=pooled)


def measure_roofline(model: Any, *, reads_first: bool = False) -> EncoderRoofline | None:
    """The least time of passes of a base model that is to run by packed layers, before these are packed.

    None: there is no kernel to measure.
    """
    limits = measure_limits(model, DTYPES[model.dtype])
    return (
        None if limits is None else EncoderRoofline(read_encoder_work(model, reads_first=reads_first), limits)
    )


def read_encoder_work(model: Any, *, reads_first: bool) -> EncoderWork:
    """`reads_first`: no token of the last layer is read but the first of each input."""
    layers = [_parts(layer) for layer in _layers(model)]
    of_inputs = _parameters(_after_keys(layers[-1])) if reads_first else 0
    parameters = sum(_parameters([*_after_keys(layer), layer.key, layer.value]) for layer in layers)
    seen_flops = 4 * layers[0].query.weight.shape[0]  # a product with the key, and one with the value
    return EncoderWork(
        parameters - of_inputs,
        of_inputs,
        parameters * model.dtype.itemsize,
        seen_flops * (len(layers) - reads_first),
        seen_flops * reads_first,
    )


def _after_keys(layer: LayerParts) -> list[Any]:
    """The linear layers that a token passes besides those that make its key and value."""
    return [layer.query, layer.output, layer.up, layer.down]


def _parameters(linears: list[Any]) -> int:
    return sum(linear.weight.numel() for linear in linears)


def _parts(layer: Any) -> LayerParts:
    """Raises AttributeError for a layer that is built otherwise."""
    if hasattr(layer, "sa_layer_norm"):  # DistilBERT's
        attention, feed = layer.attention, layer.ffn
        return LayerParts(
            *(attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin, layer.sa_layer_norm),
            *(feed.lin1, feed.activation, feed.lin2, layer.output_layer_norm),
        )
    own, output = layer.attention.self, layer.attention.output
    return LayerParts(
        *(own.query, own.key, own.value, output.dense, output.LayerNorm),
        *(layer.intermediate.dense, layer.intermediate.intermediate_act_fn),
        *(layer.output.dense, layer.output.LayerNorm),
    )


def _layers(model: Any) -> Sequence[Any]:
    """The layers of a base model. Raises AttributeError for one that is built otherwise."""
    layers: Sequence[Any] = _encoder(model).layer
    return layers


def _encoder(model: Any) -> Any:
    return model.transformer if hasattr(model, "transformer") else model.encoder


def _is_like_bert(layer: Any) -> bool:
    """Whether a layer has only parts that BERT's has: no adapter, relative position or cross-attention."""
    linears = sum(type(module) is torch.nn.Linear for module in layer.modules())
    norms = sum(type(module) is torch.nn.LayerNorm for module in layer.modules())
    known = ("Linear", "LayerNorm", "Dropout")
    leaves = [module for module in layer.modules() if not list(module.children())]
    others = [leaf for leaf in leaves if type(leaf).__name__ not in known and list(leaf.parameters())]
    return (linears, norms) == (6, 2) and not others


def _has_layers_alone(model: Any) -> bool:
    """Whether there are no weights between a model's embeddings and its layers, as RemBERT's projection, or
    beside these.
    """
    in_layers = {id(weight) for layer in _layers(model) for weight in layer.parameters()}
    return all(id(weight) in in_layers for weight in _encoder(model).parameters())
