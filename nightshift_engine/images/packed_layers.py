"""Layers of vision transformers with packed linear layers, in the places of transformers' own.

For layers that norm what they read: ViT's, DeiT's, CLIP's. Recognised by their parts, on a CPU; the caller
tries that they compute the same.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList

from ..encoders.packed.packed_attention import Attention, attention_over
from ..encoders.packed.packed_layers import DTYPES, PASS_ROWS
from ..encoders.stream import RowNorm, Stream, buffer_for, packed
from ..execution.decoder.buffers import Buffers
from ..execution.device.mapped_files import MappedFiles
from ..execution.linears.activations import activation_of
from ..execution.linears.interface import Activation, Pack
from ..execution.linears.measuring import fastest_pack
from ..execution.packed_modules import free

log = logging.getLogger(__name__)

_FIRST_NORMS: Final = ("layernorm_before", "layer_norm1")
_SECOND_NORMS: Final = ("layernorm_after", "layer_norm2")
_ATTENTIONS: Final = ("attention", "self_attn")
_OUTPUTS: Final = ("o_proj", "out_proj")


class Swapped:
    """The layers of a model that were replaced. Until `keep`, they can be put back."""

    def __init__(self) -> None:
        self._places: list[tuple[ModuleList, int, Module]] = []

    def add(self, layers: ModuleList, index: int, packed: Module) -> None:
        self._places.append((layers, index, layers[index]))
        layers[index] = packed

    def __bool__(self) -> bool:
        return bool(self._places)

    def undo(self) -> None:
        for layers, index, original in self._places:
            layers[index] = original

    def keep(self) -> None:
        """Give up the memory of the linear layers that were packed."""
        files = MappedFiles()
        for _, _, original in self._places:
            for module in original.modules():
                if type(module) is Linear:
                    free(module, files)
        self._places = []


def swap(model: Any, *, reads_first: bool = False) -> Swapped:
    """Replace lists of layers that can all be packed; there may be none.

    `reads_first`: nothing is read but the first token of each image. The last layer then computes no other.
    """
    swapped = Swapped()
    dtype = DTYPES.get(model.dtype)
    if dtype is None or model.device.type != "cpu":
        return swapped
    for layers in [each for each in model.modules() if type(each) is ModuleList]:
        parts = [found for layer in layers if (found := _parts(layer)) is not None]
        if not parts or len(parts) < len(layers):
            continue
        try:
            rows, columns = parts[0].up.weight.shape
            pack = fastest_pack(dtype, columns, rows, PASS_ROWS)[0]
            packed = PackedLayers(parts, pack, model.dtype, reads_first=reads_first)
        except LookupError as error:
            log.debug("layers are not packed: %r", error)
            return swapped
        swapped.add(layers, 0, packed)
        for index in range(1, len(layers)):
            swapped.add(layers, index, Done())
    return swapped


class _Parts:
    """The parts of a layer, whatever its family calls them."""

    def __init__(self, layer: Module) -> None:
        """Raises AttributeError and LookupError where it has others."""
        attention = _named(layer, _ATTENTIONS)
        self.qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.output: Linear = _named(attention, _OUTPUTS)
        self.head_dim = int(attention.head_dim)
        self.norm_attention: LayerNorm = _named(layer, _FIRST_NORMS)
        self.norm: LayerNorm = _named(layer, _SECOND_NORMS)
        mlp: Any = layer.mlp
        self.up: Linear = mlp.fc1
        self.down: Linear = mlp.fc2
        activation = activation_of(mlp.activation_fn)
        if activation is None:
            raise LookupError("its activation is none of ours")
        self.activation: Activation = activation


class PackedLayers(Module):
    """All layers of a model, in the place of the first. Not thread-safe: its buffers are kept."""

    def __init__(
        self, parts: list[_Parts], pack: Pack, dtype: torch.dtype, *, reads_first: bool = False
    ) -> None:
        super().__init__()
        *others, last = parts
        self._layers = [_Layer(each, pack) for each in others]
        self._last = (_FirstTokenLayer if reads_first else _Layer)(last, pack)
        self._dtype = dtype
        self._num_heads = last.output.in_features // last.head_dim
        self._kept = Buffers()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any) -> Tensor:
        """`[images, tokens, dimensions]`, or of first tokens alone `[images, 1, dimensions]`."""
        if attention_mask is not None:
            raise TypeError("an attention mask hides some tokens, which packed layers do not")
        images, tokens, _ = hidden_states.shape
        attention = attention_over(torch.ones(images, tokens, dtype=torch.bool), self._num_heads, self._dtype)
        stream = Stream(attention.rows_of(hidden_states), self._dtype, self._kept)
        for layer in self._layers:
            layer(stream, attention, self._kept)
        sums = self._last(stream, attention, self._kept)
        return sums.view(images, -1, sums.shape[1]).to(self._dtype)


class Done(Module):
    """A layer that the packed ones before it have computed."""

    def forward(self, hidden_states: Tensor, *arguments: Any, **others: Any) -> Tensor:
        return hidden_states


class _Layer:
    """One layer: query, key and value as one, the activation inside its linear layer."""

    def __init__(self, parts: _Parts, pack: Pack) -> None:
        self._pack_inputs(pack, parts.qkv)
        self._output = pack(parts.output.weight, parts.output.bias)
        self._up = pack(parts.up.weight, parts.up.bias, activation=parts.activation)
        self._down = pack(parts.down.weight, parts.down.bias)
        self._norm_attention, self._norm = RowNorm(parts.norm_attention), RowNorm(parts.norm)

    def _pack_inputs(self, pack: Pack, qkv: tuple[Linear, ...]) -> None:
        self._qkv = packed(pack, *qkv)

    def __call__(self, stream: Stream, attention: Attention, buffers: Buffers) -> Tensor:
        """Takes the stream through the layer; its sums `[rows, dimensions]`, float32."""
        rows = stream.normed(self._norm_attention)
        qkv = buffer_for(buffers, "qkv", rows, self._qkv.out_features)
        self._qkv.store(rows, qkv)
        context = buffer_for(buffers, "context", rows, rows.shape[1])
        attention.attend(qkv, context)
        return self._after_attention(context, stream, buffers)

    def _after_attention(self, context: Tensor, stream: Stream, buffers: Buffers) -> Tensor:
        stream.add(self._output, context)
        rows = stream.normed(self._norm)
        inner = buffer_for(buffers, "inner", rows, self._up.out_features)
        self._up.store(rows, inner)
        stream.add(self._down, inner)
        return stream.sums


class _FirstTokenLayer(_Layer):
    """A last layer of which only the first token of each image is read."""

    def _pack_inputs(self, pack: Pack, qkv: tuple[Linear, ...]) -> None:
        query, key, value = qkv
        self._query, self._key_value = packed(pack, query), packed(pack, key, value)

    def __call__(self, stream: Stream, attention: Attention, buffers: Buffers) -> Tensor:
        """`[images, dimensions]`, float32."""
        rows = stream.normed(self._norm_attention)
        key_value = buffer_for(buffers, "key_value", rows, self._key_value.out_features)
        self._key_value.store(rows, key_value)
        first = rows[attention.starts]
        query = buffer_for(buffers, "query", first, self._query.out_features)
        self._query.store(first, query)
        context = buffer_for(buffers, "first context", first, first.shape[1])
        attention.attend_from_first(query, key_value, context)
        first_stream = Stream(stream.sums[attention.starts], stream.dtype, buffers)
        return self._after_attention(context, first_stream, buffers)


def _parts(layer: Module) -> _Parts | None:
    """None for a layer of another kind, or with weights that those named have not."""
    linears = sum(type(module) is Linear for module in layer.modules())
    norms = sum(type(module) is LayerNorm for module in layer.modules())
    own = {id(each) for module in layer.modules() if type(module) in (Linear, LayerNorm)
           for each in module.parameters()}  # fmt: skip
    if (linears, norms) != (6, 2) or any(id(each) not in own for each in layer.parameters()):
        return None
    try:
        return _Parts(layer)
    except (AttributeError, LookupError):
        return None


def _named(module: Any, names: tuple[str, ...]) -> Any:
    """Raises LookupError."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(names[0])
