"""The parts of a layer that is built as BERT's or DistilBERT's, which name them differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Linear layers and norms, in the order in which rows pass them."""

    query: Any
    key: Any
    value: Any
    output: Any
    norm_attention: Any
    up: Any
    activation: Any
    down: Any
    norm: Any

    @classmethod
    def of(cls, layer: Any) -> LayerParts:
        """Raises AttributeError for a layer that is built otherwise."""
        if hasattr(layer, "sa_layer_norm"):
            attention, feed = layer.attention, layer.ffn
            return cls(
                *(attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin, layer.sa_layer_norm),
                *(feed.lin1, feed.activation, feed.lin2, layer.output_layer_norm),
            )
        own, output = layer.attention.self, layer.attention.output
        return cls(
            *(own.query, own.key, own.value, output.dense, output.LayerNorm),
            *(layer.intermediate.dense, layer.intermediate.intermediate_act_fn),
            *(layer.output.dense, layer.output.LayerNorm),
        )


def layers_of(model: Any) -> Sequence[Any]:
    """Of a base model. Raises AttributeError for one that is built otherwise."""
    layers: Sequence[Any] = (model.transformer if hasattr(model, "transformer") else model.encoder).layer
    return layers


def is_like_bert(layer: Any) -> bool:
    """No layer that BERT's has not, such as an adapter or a relative position; no cross-attention."""
    linears = sum(type(module) is torch.nn.Linear for module in layer.modules())
    norms = sum(type(module) is torch.nn.LayerNorm for module in layer.modules())
    known = ("Linear", "LayerNorm", "Dropout")
    leaves = [each for each in layer.modules() if not list(each.children())]
    others = [each for each in leaves if type(each).__name__ not in known and list(each.parameters())]
    return (linears, norms) == (6, 2) and not others


def has_layers_alone(model: Any) -> bool:
    """No weights between its embeddings and its layers, as RemBERT's projection, or beside these."""
    of_layers = {id(each) for layer in layers_of(model) for each in layer.parameters()}
    encoder = model.transformer if hasattr(model, "transformer") else model.encoder
    return all(id(each) in of_layers for each in encoder.parameters())
