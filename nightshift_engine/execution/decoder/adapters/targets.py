"""The layers of a written-out decoder that adapters may change, by their names in the checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ...packed_modules import shape_of
from ..recognition.facts import DecoderFacts, LayerFacts, MlpFacts

Place = Literal["qkv", "output", "up", "down"]
"""Linear layers of a decoder's layer, as they are packed: `Attention.qkv`, `Mlp.up` and so on."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of the checkpoint's linear layers: a run of the outputs of a packed one."""

    layer: int
    place: Place
    part: int
    """The number of the run."""
    first: int
    """The first output of the run."""
    in_features: int
    out_features: int
    order: Tensor | None
    """Packed output i of the run is the layer's own output `order[i]`. None: i."""


def find_targets(model: Any, facts: DecoderFacts) -> dict[str, Target]:
    """All targets of a transformers model, before it is packed, by the paths of their modules."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        f"{paths[id(module)]}.{path}": target
        for index, (module, of_layer) in enumerate(zip(facts.layers, facts.layer_facts, strict=True))
        for path, target in _of_layer(module, index, of_layer)
    }


def _of_layer(module: Any, index: int, facts: LayerFacts) -> Iterator[tuple[str, Target]]:
    attention, mlp = facts.attention, facts.mlp
    yield from _of_place(module, index, "qkv", attention.linears, attention.order)
    yield from _of_place(module, index, "output", [attention.output])
    if isinstance(mlp, MlpFacts):
        _, width = shape_of(module.get_submodule(mlp.down))
        yield from _of_place(module, index, "up", mlp.ups, mlp.order(width))
        yield from _of_place(module, index, "down", [mlp.down])


def _of_place(
    module: Any, index: int, place: Place, paths: Sequence[str], order: Tensor | None = None
) -> Iterator[tuple[str, Target]]:
    """`order` is that of all outputs, which are then those of one layer."""
    assert order is None or len(paths) == 1, "outputs of several layers are put in order"
    first = 0
    for part, path in enumerate(paths):
        outputs, inputs = shape_of(module.get_submodule(path))
        yield path, Target(index, place, part, first, inputs, outputs, order)
        first += outputs
