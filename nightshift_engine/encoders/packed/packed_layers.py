"""BERT's layers with packed linear layers: query, key and value as one, the activation inside its layer.

For what is built like BERT (RoBERTa, XLM-RoBERTa, ELECTRA, CamemBERT, DistilBERT) on a CPU. Recognised by its
parts, and used only where it computes what transformers' own layers do.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from ...execution.decoder.buffers import Buffers
from ...execution.device.mapped_files import MappedFiles
from ...execution.linears.activations import activation_of
from ...execution.linears.interface import Activation, LinearDType, Pack
from ...execution.linears.measuring import fastest_pack
from ...execution.packed_modules import free
from ..stream import RowNorm, Stream, buffer_for, packed
from .bert_parts import LayerParts, has_layers_alone, is_like_bert, layers_of
from .packed_attention import Attention, attention_over

log = logging.getLogger(__name__)

DTYPES: dict[torch.dtype, LinearDType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
NOT_PACKED = (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a model that is built otherwise makes of packed layers: it keeps its own."""
PASS_ROWS = 256
"""Rows of the pass by which the way to compute linear layers is chosen."""


class PackedLayers:
    """All layers of one encoder. Not thread-safe: its buffers are kept from call to call."""

    def __init__(self, model: Any, pack: Pack, activation: Activation, *, reads_first: bool = False) -> None:
        self._embed: Any = model.embeddings
        self._dtype: torch.dtype = model.dtype
        self._project: Any = getattr(model, "embeddings_project", None)
        self._num_heads = int(model.config.num_attention_heads)
        *layers, last = layers_of(model)
        self._layers = [_Layer(layer, pack, activation) for layer in layers]
        self._last = (_FirstTokenLayer if reads_first else _Layer)(last, pack, activation)
        self._buffers = Buffers()

    @classmethod
    def of(cls, model: Any, *, reads_first: bool = False) -> PackedLayers | None:
        """None for other architectures, other devices, and where this machine has no kernel for the dtype.

        `reads_first`: nothing is read but the first token of each input, as by a classifier's head. The last
        layer then computes no other.
        """
        dtype = DTYPES.get(model.dtype)
        if dtype is None or model.device.type != "cpu" or getattr(model.config, "is_decoder", False):
            return None
        try:
            first = layers_of(model)[0]
            parts = LayerParts.of(first)
            activation = activation_of(parts.activation)
            if activation is None or not (is_like_bert(first) and has_layers_alone(model)):
                return None
            rows, columns = parts.up.weight.shape
            pack, _ = fastest_pack(dtype, columns, rows, PASS_ROWS)
            return cls(model, pack, activation, reads_first=reads_first)
        except (AttributeError, IndexError, LookupError, TypeError) as error:
            log.debug("layers are not packed: %r", error)
            return None

    def __call__(self, input_ids: Tensor, mask: Tensor, type_ids: Tensor | None = None) -> Tensor:
        """Vectors of tokens `[inputs, tokens, dimensions]`, from ids, a 0/1 mask, and the number of the text
        that each belongs to, `[inputs, tokens]` each.

        Those of padding mean nothing. With `reads_first`, they are `[inputs, 1, dimensions]`.
        """
        types = {} if type_ids is None else {"token_type_ids": type_ids}
        hidden: Tensor = self._embed(input_ids=input_ids, **types)
        if self._project is not None:
            hidden = self._project(hidden)
        attention = attention_over(mask.bool(), self._num_heads, self._dtype)
        stream = Stream(attention.rows_of(hidden), self._dtype, self._buffers)
        rows = stream.rounded()
        for layer in self._layers:
            rows = layer(stream, rows, attention, self._buffers)
        vectors = self._last(stream, rows, attention, self._buffers)
        return vectors[:, None] if isinstance(self._last, _FirstTokenLayer) else attention.padded(vectors)

    def free_originals(self, model: Any) -> None:
        """Give up the memory of the linear layers that were packed."""
        files = MappedFiles()
        for layer in layers_of(model):
            for module in layer.modules():
                if type(module) is torch.nn.Linear:
                    free(module, files)


class _Layer:
    """One layer's packed linears and its norms."""

    def __init__(self, layer: Any, pack: Pack, activation: Activation) -> None:
        parts = LayerParts.of(layer)
        self._pack_inputs(pack, parts.query, parts.key, parts.value)
        self.output = pack(parts.output.weight, parts.output.bias)
        self.norm_attention = RowNorm(parts.norm_attention)
        self.up = pack(parts.up.weight, parts.up.bias, activation=activation)
        self.down = pack(parts.down.weight, parts.down.bias)
        self.norm = RowNorm(parts.norm)

    def _pack_inputs(self, pack: Pack, query: Any, key: Any, value: Any) -> None:
        self.qkv = packed(pack, query, key, value)

    def __call__(self, stream: Stream, rows: Tensor, attention: Attention, buffers: Buffers) -> Tensor:
        """Takes the stream through. `rows`, and what is returned: its sums as a linear layer reads them."""
        qkv = buffer_for(buffers, "qkv", rows, self.qkv.out_features)
        self.qkv.store(rows, qkv)
        context = buffer_for(buffers, "context", rows, rows.shape[1])
        attention.attend(qkv, context)
        return self._after_attention(context, stream, buffers)

    def _after_attention(self, context: Tensor, stream: Stream, buffers: Buffers) -> Tensor:
        stream.add(self.output, context)
        rows = stream.norm(self.norm_attention)
        inner = buffer_for(buffers, "inner", rows, self.up.out_features)
        self.up.store(rows, inner)
        stream.add(self.down, inner)
        return stream.norm(self.norm)


class _FirstTokenLayer(_Layer):
    """A last layer of which only the first token of each input is read."""

    def _pack_inputs(self, pack: Pack, query: Any, key: Any, value: Any) -> None:
        self.query, self.key_value = packed(pack, query), packed(pack, key, value)

    def __call__(self, stream: Stream, rows: Tensor, attention: Attention, buffers: Buffers) -> Tensor:
        """`[inputs, dimensions]`."""
        key_value = buffer_for(buffers, "key_value", rows, self.key_value.out_features)
        self.key_value.store(rows, key_value)
        first = Stream(stream.sums[attention.starts], stream.dtype, buffers, "first rows")
        own = first.rounded()
        query = buffer_for(buffers, "query", own, self.query.out_features)
        self.query.store(own, query)
        context = buffer_for(buffers, "first context", own, own.shape[1])
        attention.attend_from_first(query, key_value, context)
        return self._after_attention(context, first, buffers)
