"""What an encoder's packed layers take of its device: read before their weights are packed."""

from __future__ import annotations

from typing import Any

from ...core.roofline import EncoderRoofline, EncoderWork
from ...loading.device_limits import measure_limits
from ..packed.bert_parts import LayerParts, layers_of
from ..packed.packed_layers import DTYPES


def measure_roofline(model: Any, *, reads_first: bool = False) -> EncoderRoofline | None:
    """Of a base model that is to run by packed layers. None: there is no kernel to measure."""
    limits = measure_limits(model, DTYPES[model.dtype])
    return None if limits is None else EncoderRoofline(read_work(model, reads_first=reads_first), limits)


def read_work(model: Any, *, reads_first: bool) -> EncoderWork:
    """`reads_first`: of the last layer, no token is read but the first of each input."""
    layers = [LayerParts.of(layer) for layer in layers_of(model)]
    of_inputs = _parameters(_after_keys(layers[-1])) if reads_first else 0
    parameters = sum(_parameters([*_after_keys(each), each.key, each.value]) for each in layers)
    seen_flops = 4 * layers[0].query.weight.shape[0]  # a product with the key, and one with the value
    return EncoderWork(
        parameters - of_inputs,
        of_inputs,
        parameters * model.dtype.itemsize,
        seen_flops * (len(layers) - reads_first),
        seen_flops * reads_first,
    )


def _after_keys(layer: LayerParts) -> list[Any]:
    """What a token passes besides the linears that make its key and value."""
    return [layer.query, layer.output, layer.up, layer.down]


def _parameters(linears: list[Any]) -> int:
    return sum(each.weight.numel() for each in linears)
