"""A classifier's base model with packed layers. Its head stays transformers' own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Outputs

from .packed_layers import PackedLayers


class PackedBase(torch.nn.Module):
    """Stands in for the base model of a `...ForSequenceClassification`."""

    def __init__(self, layers: PackedLayers, pooler: Any) -> None:
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
        """As the base model's, `[inputs, tokens]` each."""
        hidden = self._layers(input_ids, attention_mask, token_type_ids)
        pooled = None if self._pooler is None else self._pooler(hidden)
        return Outputs(last_hidden_state=hidden, pooler_output=pooled)
