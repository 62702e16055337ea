"""Packed layers of vision transformers that norm what they read: ViT, DeiT, CLIP."""

import logging
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList

from ...execution.attention.input_attention import attention_over
from ...execution.decoder.buffers import Buffers
from ...execution.linears.interface import Pack
from ...execution.linears.packing import fastest_pack
from ...execution.packed_layers import (
    DTYPES,
    PASS_ROWS,
    LayerParts,
    PackedRows,
    Stream,
    free_linears,
    pack_layers,
)

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
        """Gives up the memory of the linear layers that were packed."""
        free_linears(module for _, _, original in self._places for module in original.modules())
        self._places = []


def swap(model: Any, *, reads_first: bool = False) -> Swapped:
    """Replaces lists of layers that can all be packed; there may be none.

    `reads_first`: nothing is read but the first token of each image. The last layer then computes no other.
    """
    swapped = Swapped()
    dtype = DTYPES.get(model.dtype)
    if dtype is None or model.device.type != "cpu":
        return swapped
    for layers in [module for module in model.modules() if type(module) is ModuleList]:
        parts = [layer_parts for layer in layers if (layer_parts := _parts(layer)) is not None]
        if not parts or len(parts) < len(layers):
            continue
        try:
            rows, columns = parts[0].up.weight.shape
            pack = fastest_pack(dtype, columns, rows, PASS_ROWS)[0]
            num_heads = parts[0].output.in_features // int(_named(layers[0], _ATTENTIONS).head_dim)
            packed = PackedImageLayers(parts, pack, model.dtype, num_heads, reads_first=reads_first)
        except LookupError as error:
            log.debug("layers are not packed: %r", error)
            return swapped
        swapped.add(layers, 0, packed)
        for index in range(1, len(layers)):
            swapped.add(layers, index, Done())
    return swapped


class PackedImageLayers(Module):
    """All layers of a model, in the place of the first. Not thread-safe: its buffers are kept."""

    def __init__(
        self,
        parts: list[LayerParts],
        pack: Pack,
        dtype: torch.dtype,
        num_heads: int,
        *,
        reads_first: bool = False,
    ) -> None:
        super().__init__()
        self._packed = pack_layers(parts, pack, reads_first=reads_first)
        self._dtype, self._num_heads = dtype, num_heads
        self._kept = Buffers()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any) -> Tensor:
        """`[images, tokens, dimensions]`, or of first tokens alone `[images, 1, dimensions]`."""
        if attention_mask is not None:
            raise TypeError("an attention mask hides some tokens, which packed layers do not")
        images, tokens, _ = hidden_states.shape
        attention = attention_over(torch.ones(images, tokens, dtype=torch.bool), self._num_heads, self._dtype)
        stream = Stream(attention.rows_of(hidden_states), self._dtype, self._kept)
        rows = PackedRows(stream, is_pre_norm=True)
        for layer in self._packed:
            rows = layer(rows, attention, self._kept)
        return rows.vectors.view(images, -1, rows.vectors.shape[1]).to(self._dtype)


class Done(Module):
    """A layer that the packed ones before it have computed."""

    def forward(self, hidden_states: Tensor, *arguments: Any, **others: Any) -> Tensor:
        return hidden_states


def _parts(layer: Any) -> LayerParts | None:
    """The parts of a layer; None for a layer of another kind, or with weights in other modules."""
    linears = sum(type(module) is Linear for module in layer.modules())
    norms = sum(type(module) is LayerNorm for module in layer.modules())
    known = {
        id(weight)
        for module in layer.modules()
        if type(module) in (Linear, LayerNorm)
        for weight in module.parameters()
    }
    if (linears, norms) != (6, 2) or any(id(weight) not in known for weight in layer.parameters()):
        return None
    try:
        attention, mlp = _named(layer, _ATTENTIONS), layer.mlp
        if not hasattr(attention, "head_dim"):
            return None
        return LayerParts(
            *(attention.q_proj, attention.k_proj, attention.v_proj, _named(attention, _OUTPUTS)),
            *(_named(layer, _FIRST_NORMS), mlp.fc1, mlp.activation_fn, mlp.fc2, _named(layer, _SECOND_NORMS)),
        )
    except (AttributeError, LookupError):
        return None


def _named(module: Any, names: tuple[str, ...]) -> Any:
    """Raises LookupError."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(names[0])
