"""Layers of vision transformers with packed linear layers, in the places of transformers' own.

For layers that norm what they read: ViT's, DeiT's, CLIP's. Recognised by their parts, on a CPU; the caller
tries that they compute the same.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList

from ..encoders.packed_layers import DTYPES
from ..execution.linears.activations import activation_of
from ..execution.linears.interface import Activation, Pack
from ..execution.linears.interface import Linear as PackedLinear
from ..execution.linears.measuring import fastest_pack
from ..execution.mapped_files import MappedFiles
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


def swap(model: Any) -> Swapped:
    """Replace the layers of a model that can be packed; there may be none."""
    swapped, buffers = Swapped(), Buffers()
    dtype = DTYPES.get(model.dtype)
    if dtype is None or model.device.type != "cpu":
        return swapped
    pack: Pack | None = None
    for layers in [each for each in model.modules() if type(each) is ModuleList]:
        for index, layer in enumerate(layers):
            if (parts := _parts(layer)) is None:
                continue
            try:
                rows, columns = parts.up.weight.shape
                pack = pack or fastest_pack(dtype, columns, rows)[0]
                swapped.add(layers, index, PackedLayer(parts, pack, buffers))
            except LookupError as error:
                log.debug("layers are not packed: %r", error)
                return swapped
    return swapped


class Buffers:
    """Memory that all layers of a model use in turn, kept from call to call. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, rows: Tensor, columns: int) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or len(kept) < len(rows):
            kept = self._kept[name] = torch.empty(len(rows), columns, dtype=rows.dtype)
        return kept[: len(rows)]


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


class PackedLayer(Module):
    """One layer: query, key and value as one, the activation inside its linear layer."""

    def __init__(self, parts: _Parts, pack: Pack, buffers: Buffers) -> None:
        super().__init__()
        weights = torch.cat([each.weight for each in parts.qkv])
        biases = [each.bias for each in parts.qkv]
        bias = None if biases[0] is None else torch.cat(biases)
        self._qkv = pack(weights, bias)
        self._output = pack(parts.output.weight, parts.output.bias)
        self._up = pack(parts.up.weight, parts.up.bias, activation=parts.activation)
        self._down = pack(parts.down.weight, parts.down.bias)
        self._norm_attention, self._norm = parts.norm_attention, parts.norm
        self._head_dim = parts.head_dim
        self._shared = buffers

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any) -> Tensor:
        """`[images, tokens, dimensions]`, which may be computed in place."""
        images, tokens, dimensions = hidden_states.shape
        rows = hidden_states.reshape(-1, dimensions).contiguous()
        qkv = self._shared.take("qkv", rows, self._qkv.out_features)
        self._qkv.store(self._norm_attention(rows), qkv)
        query, key, value = (
            qkv.view(images, tokens, 3, -1, self._head_dim).permute(2, 0, 3, 1, 4).unbind()
        )  # each [images, heads, tokens, head_dim]
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        rows = self._add(self._output, context.transpose(1, 2).reshape(len(rows), -1), rows)
        inner = self._shared.take("inner", rows, self._up.out_features)
        self._up.store(self._norm(rows), inner)
        return self._add(self._down, inner, rows).view(images, tokens, dimensions)

    def _add(self, linear: PackedLinear, x: Tensor, rows: Tensor) -> Tensor:
        """`rows` plus the layer of `x`; in place where the kernel adds in their dtype."""
        if rows.dtype == torch.float32:
            linear.add_to(x, rows)
            return rows
        out = self._shared.take("out", rows, linear.out_features)
        linear.store(x, out)
        return rows + out


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
