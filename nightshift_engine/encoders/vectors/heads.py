"""What comes after the pooling: the modules of sentence-transformers that turn a vector into another.

Each is computed in float32, as its files say. What those ask for beyond that is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...checkpoint.files import read_object
from ...errors import ModelLoadFailed, UnsupportedModel

Head = Callable[[Tensor], Tensor]
"""Vectors to vectors, float32 [inputs, dimensions]."""

_VECTOR = "sentence_embedding"
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Mish)
}
WEIGHTS = "model.safetensors"


def normalize(vectors: Tensor) -> Tensor:
    """To unit length."""
    return nn.functional.normalize(vectors, dim=-1)


@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation, and what it adds its input to."""

    weight: Tensor  # [out, in]
    bias: Tensor | None
    activation: nn.Module
    residual: Tensor | None = None  # [out, in]
    is_residual: bool = False

    def __call__(self, vectors: Tensor) -> Tensor:
        out: Tensor = self.activation(nn.functional.linear(vectors, self.weight, self.bias))
        if not self.is_residual:
            return out
        return out + (vectors if self.residual is None else nn.functional.linear(vectors, self.residual))


@dataclass(frozen=True)
class LayerNorm:
    weight: Tensor  # [dimensions]
    bias: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        return nn.functional.layer_norm(vectors, self.weight.shape, self.weight, self.bias)


def read_head(kind: str, path: Path, dimensions: int, device: torch.device) -> tuple[Head, int]:
    """A module, and the dimensions of what it gives; `dimensions`: of what it gets.

    Raises UnsupportedModel or ModelLoadFailed.
    """
    name = str(path)
    config = read_object(path / "config.json", name) if (path / "config.json").exists() else {}
    for field in ("module_input_name", "module_output_name"):
        if config.get(field) not in (None, _VECTOR):
            raise UnsupportedModel(name, f"its {field} {config[field]!r} is not one we compute")
    if kind == "Normalize":
        return normalize, dimensions
    weights = _Weights(path, device)
    if kind == "LayerNorm":
        return LayerNorm(
            weights.take("norm.weight", (dimensions,)), weights.last("norm.bias", (dimensions,))
        ), dimensions
    assert kind == "Dense", f"{kind} is not a module after pooling"
    return _read_dense(config, weights, dimensions, name)


def _read_dense(config: dict[str, Any], weights: _Weights, dimensions: int, name: str) -> tuple[Dense, int]:
    out = config.get("out_features")
    if config.get("in_features") != dimensions or type(out) is not int:
        says = f"from {config.get('in_features')} to {out} dimensions, and gets vectors of {dimensions}"
        raise UnsupportedModel(name, f"it goes {says}")
    shape = (out, dimensions)
    is_residual = bool(config.get("use_residual"))
    dense = Dense(
        weights.take("linear.weight", shape),
        weights.take("linear.bias", (out,)) if config.get("bias", True) else None,
        _activation(config.get("activation_function", "torch.nn.modules.activation.Tanh"), name),
        weights.take("residual.weight", shape) if is_residual and out != dimensions else None,
        is_residual,
    )
    weights.check_all_taken()
    return dense, out


def _activation(declared: Any, name: str) -> nn.Module:
    """Of torch's own, those that are made without arguments."""
    package, _, kind = str(declared).rpartition(".")
    if not f"{package}.".startswith("torch.nn.") or kind not in _ACTIVATIONS:
        raise UnsupportedModel(name, f"its activation_function {declared!r} is not one we compute")
    return _ACTIVATIONS[kind]()


class _Weights:
    """Of one module; each is taken once."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._name = str(path)
        try:
            found = load_file(path / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelLoadFailed(f"cannot load {self._name!r}: {WEIGHTS}: {error}") from error
        self._left = {key: weight.to(device, torch.float32) for key, weight in found.items()}

    def take(self, key: str, shape: Sequence[int]) -> Tensor:
        weight = self._left.pop(key, None)
        if weight is None or tuple(weight.shape) != tuple(shape):
            found = "missing" if weight is None else f"of shape {tuple(weight.shape)}"
            raise ModelLoadFailed(f"cannot load {self._name!r}: {key} is {found}, not {tuple(shape)}")
        if not bool(weight.isfinite().all()):
            raise UnsupportedModel(self._name, f"its weight {key} has NaN or infinite values")
        return weight

    def last(self, key: str, shape: Sequence[int]) -> Tensor:
        weight = self.take(key, shape)
        self.check_all_taken()
        return weight

    def check_all_taken(self) -> None:
        if self._left:
            raise UnsupportedModel(self._name, f"it has no use for its weight {min(self._left)}")
