"""Weights of a checkpoint that several tensors of its files make up, as its scheme lays them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedModel
from ..files import read_object
from ..stored_tensors import StoredTensor, stored_tensors
from .layouts import Parts
from .schemes import Scheme, read_scheme
from .weight import Code, NarrowWeight

_PARTS = (
    *("weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_g_idx"),
    *("weight_shape", "qweight", "qzeros", "scales", "g_idx", "blocks"),
)
_OF_INPUTS = ("input_scale", "activation_scale")
"""Fixed scales of inputs: these are not rounded, or by scales of their own."""
_CODES = ("int8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class NarrowTensor:
    """A weight of the model, by the tensors that it is stored as."""

    name: str
    scheme: Scheme
    parts: Mapping[str, str]
    """Names in the files, by what the layout calls them."""
    shape: tuple[int, ...]
    num_bytes: int
    """Bytes of its codes, scales and zeros."""
    code: Code

    @property
    def num_elements(self) -> int:
        """Numbers in the weight itself."""
        return math.prod(self.shape)

    def read(self, tensor_of: Callable[[str], Tensor], model: str) -> NarrowWeight:
        """Reads it, `tensor_of` a name in the files. Raises `UnsupportedModel` naming what is wrong in it."""
        parts = {part: tensor_of(name) for part, name in self.parts.items()}
        narrow = _laid_out(self.scheme, parts, self.name, model)
        return replace(narrow, rounds_inputs=self.scheme.rounds_inputs)


@dataclass(frozen=True, slots=True)
class NarrowCheckpoint:
    """A quantised checkpoint's weights that are narrow; the others are stored under their own names."""

    scheme: Scheme
    weights: Mapping[str, NarrowTensor]
    """Narrow weights by the name that the model has for them."""
    parts: frozenset[str]
    """Names of all tensors that they consist of, and of scales of inputs."""


def read_narrow(directory: Path, name: str) -> NarrowCheckpoint | None:
    """The narrow weights of a checkpoint, from the headers of its files; None if it is not quantised.

    Raises `UnsupportedModel` naming the tensor, or `ModelLoadFailed`.
    """
    scheme = scheme_of(read_object(directory / "config.json", name), name)
    if scheme is None:
        return None
    stored = {tensor.name: tensor for tensor in stored_tensors(directory, name)}
    weights = [_narrow_tensor(tensor, stored, scheme, name) for tensor in _anchors(stored.values(), scheme)]
    if not weights:
        reason = f"its files have no tensor *{scheme.anchor} of {scheme.method}, as config.json says"
        raise UnsupportedModel(name, reason)
    of_inputs = (name for name in stored if name.rpartition(".")[2] in _OF_INPUTS)
    parts = frozenset([*(part for weight in weights for part in weight.parts.values()), *of_inputs])
    return NarrowCheckpoint(scheme, {weight.name: weight for weight in weights}, parts)


def scheme_of(config: Mapping[str, Any], name: str) -> Scheme | None:
    """The scheme that a config.json states; None if it states none. Raises `UnsupportedModel`."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and (given := part.get("quantization_config")):
            return read_scheme(given, name)
    return None


def _anchors(stored: Iterable[StoredTensor], scheme: Scheme) -> Iterable[StoredTensor]:
    for tensor in stored:
        if tensor.name.endswith(scheme.anchor) and (scheme.anchor != ".weight" or tensor.dtype in _CODES):
            yield tensor


def _narrow_tensor(
    anchor: StoredTensor, stored: Mapping[str, StoredTensor], scheme: Scheme, model: str
) -> NarrowTensor:
    prefix = anchor.name.removesuffix(scheme.anchor)
    wanted = ("blocks", "scales") if scheme.separator == "_" else _PARTS
    names = {part: f"{prefix}{scheme.separator}{part}" for part in wanted}
    parts = {part: name for part, name in names.items() if name in stored}
    weight = prefix if scheme.separator == "_" else f"{prefix}.weight"
    described = {part: _described(stored[name], model) for part, name in parts.items()}
    narrow = _laid_out(scheme, described, weight, model)
    shape = narrow.shape
    if scheme.is_transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return NarrowTensor(weight, scheme, parts, shape, narrow.num_bytes, narrow.code)


def _described(tensor: StoredTensor, model: str) -> Tensor:
    """A tensor of its shape and dtype, without memory."""
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedModel(
            model, f"its tensor {tensor.name} is stored as {tensor.dtype}, which is not read"
        )
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _laid_out(scheme: Scheme, parts: Parts, weight: str, model: str) -> NarrowWeight:
    try:
        return scheme.layout(parts, scheme.format)
    except ValueError as error:
        raise UnsupportedModel(model, f"its weight {weight} ({scheme.method}): {error}") from error
