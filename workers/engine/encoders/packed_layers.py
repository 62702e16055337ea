"""BERT's layers with packed linear layers: query, key and value as one, the activation inside its layer.

For what is built like BERT (RoBERTa, XLM-RoBERTa, ELECTRA, CamemBERT, DistilBERT) on a CPU. Recognised by its
parts, and used only where it computes what transformers' own layers do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..execution.linears.activations import activation_of
from ..execution.linears.interface import Activation, Linear, LinearDType, Pack
from ..execution.linears.measuring import fastest_pack
from ..execution.mapped_files import MappedFiles
from ..execution.packed_modules import free
from .bert_parts import LayerParts, has_layers_alone, is_like_bert, layers_of
from .packed_attention import Attention, PaddedAttention, SeparateAttention

log = logging.getLogger(__name__)

DTYPES: dict[torch.dtype, LinearDType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
Norm = Callable[[Tensor], Tensor]
NOT_PACKED = (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a model that is built otherwise makes of packed layers: it keeps its own."""
SEPARATE_TOKENS_MIN = 64
"""From this length on, one attention for each input costs less than padding and a mask."""


class PackedLayers:
    """All layers of one encoder. Not thread-safe: its buffers are kept from call to call."""

    def __init__(self, model: Any, pack: Pack, activation: Activation, *, reads_first: bool = False) -> None:
        self._embed: Any = model.embeddings
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
            pack, _ = fastest_pack(dtype, columns, rows)
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
        is_short = hidden.shape[1] < SEPARATE_TOKENS_MIN
        attention = (PaddedAttention if is_short else SeparateAttention)(mask.bool(), self._num_heads)
        rows = attention.rows_of(hidden)
        for layer in self._layers:
            rows = layer(rows, attention, self._buffers)
        vectors = self._last(rows, attention, self._buffers)
        return vectors[:, None] if isinstance(self._last, _FirstTokenLayer) else attention.padded(vectors)

    def free_originals(self, model: Any) -> None:
        """Give up the memory of the linear layers that were packed."""
        files = MappedFiles()
        for layer in layers_of(model):
            for module in layer.modules():
                if type(module) is torch.nn.Linear:
                    free(module, files)


class Buffers:
    """Rows that are written anew by each layer, by name."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def get(self, name: str, rows: Tensor, columns: int) -> Tensor:
        """As many as `rows`, in their dtype."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < len(rows):
            kept = self._kept[name] = torch.empty(len(rows), columns, dtype=rows.dtype)
        return kept[: len(rows)]


class _Layer:
    """One layer's packed linears and its norms."""

    def __init__(self, layer: Any, pack: Pack, activation: Activation) -> None:
        parts = LayerParts.of(layer)
        self._pack_inputs(pack, parts.query, parts.key, parts.value)
        self.output = pack(parts.output.weight, parts.output.bias)
        self.norm_attention: Norm = parts.norm_attention
        self.up = pack(parts.up.weight, parts.up.bias, activation=activation)
        self.down = pack(parts.down.weight, parts.down.bias)
        self.norm: Norm = parts.norm

    def _pack_inputs(self, pack: Pack, query: Any, key: Any, value: Any) -> None:
        self.qkv = _packed(pack, query, key, value)

    def __call__(self, rows: Tensor, attention: Attention, buffers: Buffers) -> Tensor:
        """What becomes of rows `[rows, dimensions]`, which may be overwritten."""
        qkv = buffers.get("qkv", rows, self.qkv.out_features)
        self.qkv.store(rows, qkv)
        context = buffers.get("context", rows, rows.shape[1])
        attention.attend(qkv, context)
        return self._after_attention(context, rows, buffers)

    def _after_attention(self, context: Tensor, rows: Tensor, buffers: Buffers) -> Tensor:
        rows = self.norm_attention(_sum(self.output, context, rows, buffers))
        inner = buffers.get("inner", rows, self.up.out_features)
        self.up.store(rows, inner)
        return self.norm(_sum(self.down, inner, rows, buffers))


class _FirstTokenLayer(_Layer):
    """A last layer of which only the first token of each input is read."""

    def _pack_inputs(self, pack: Pack, query: Any, key: Any, value: Any) -> None:
        self.query, self.key_value = _packed(pack, query), _packed(pack, key, value)

    def __call__(self, rows: Tensor, attention: Attention, buffers: Buffers) -> Tensor:
        """`[inputs, dimensions]`."""
        key_value = buffers.get("key_value", rows, self.key_value.out_features)
        self.key_value.store(rows, key_value)
        first = rows[attention.starts]
        query = buffers.get("query", first, self.query.out_features)
        self.query.store(first, query)
        return self._after_attention(attention.attend_from_first(query, key_value), first, buffers)


def _packed(pack: Pack, *parts: Any) -> Linear:
    """Several layers of the same rows as one."""
    return pack(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts]))


def _sum(linear: Linear, x: Tensor, rows: Tensor, buffers: Buffers) -> Tensor:
    """`rows` plus the layer of `x`; in place where the kernel adds in their dtype."""
    if rows.dtype == torch.float32:
        linear.add_to(x, rows)
        return rows
    out = buffers.get("out", rows, linear.out_features)
    linear.store(x, out)
    return rows + out
