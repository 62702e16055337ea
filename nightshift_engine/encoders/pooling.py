"""The pooling that a checkpoint declares, and the modules after it; without a declaration the common default.

What is not computed exactly as its files say is refused: a wrong embedding looks like a right one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..checkpoint.files import read_modules, read_object
from ..errors import ModelLoadFailed, UnsupportedModel

Head = Callable[[Tensor], Tensor]
"""Vectors to vectors, float32 [inputs, dimensions]."""

_VECTOR = "sentence_embedding"
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    activation.__name__: activation
    for activation in (
        nn.Identity,
        nn.Tanh,
        nn.ReLU,
        nn.GELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.LeakyReLU,
        nn.ELU,
        nn.Mish,
    )
}
WEIGHTS = "model.safetensors"


def normalize(vectors: Tensor) -> Tensor:
    """Scales vectors to unit length."""
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
    """One of torch's own functions that are made without arguments."""
    package, _, kind = str(declared).rpartition(".")
    if not f"{package}.".startswith("torch.nn.") or kind not in _ACTIVATIONS:
        raise UnsupportedModel(name, f"its activation_function {declared!r} is not one we compute")
    return _ACTIVATIONS[kind]()


class _Weights:
    """The weights of one module; each is taken once."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._name = str(path)
        try:
            weights = load_file(path / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelLoadFailed(f"cannot load {self._name!r}: {WEIGHTS}: {error}") from error
        self._left = {key: weight.to(device, torch.float32) for key, weight in weights.items()}

    def take(self, key: str, shape: Sequence[int]) -> Tensor:
        weight = self._left.pop(key, None)
        if weight is None or tuple(weight.shape) != tuple(shape):
            actual = "missing" if weight is None else f"of shape {tuple(weight.shape)}"
            raise ModelLoadFailed(f"cannot load {self._name!r}: {key} is {actual}, not {tuple(shape)}")
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


PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]

_MODE_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags in the order in which the vectors of their modes follow one another."""

_HEADS = ("Dense", "LayerNorm", "Normalize")
_OWN = "sentence_transformers."


@dataclass(frozen=True, slots=True)
class Pooling:
    """The steps around the transformer itself."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    """Their vectors follow one another."""
    heads: tuple[Head, ...] = (normalize,)
    dimensions: int = 0
    """Dimensions of its vectors."""
    includes_prompt: bool = True
    """Whether the tokens of a prompt are pooled. If not, the others see them all the same."""
    max_length: int | None = None
    """Tokens per input the checkpoint was made for, where it says so."""
    lowercases: bool = False
    is_declared: bool = False
    """Whether the checkpoint's files say so, or it is the default."""

    @classmethod
    def read(cls, directory: Path, hidden_size: int, device: torch.device) -> Pooling:
        """Reads what the files of a directory declare. Raises UnsupportedModel for what is not ours."""
        settings = _transformer_settings(directory / "sentence_bert_config.json")
        if not (directory / "modules.json").exists():
            return cls(dimensions=hidden_size, **settings)
        modules = _modules(directory)
        config = read_object(modules[1][1] / "config.json", str(modules[1][1]))
        modes = _modes(directory, config)
        heads, dimensions = [], hidden_size * len(modes)
        for kind, path in modules[2:]:
            head, dimensions = read_head(kind, path, dimensions, device)
            heads.append(head)
        return cls(
            modes=modes,
            heads=tuple(heads),
            dimensions=dimensions,
            includes_prompt=bool(config.get("include_prompt", True)),
            is_declared=True,
            **settings,
        )

    @property
    def is_normalized(self) -> bool:
        return bool(self.heads) and self.heads[-1] is normalize

    def __call__(self, hidden: Tensor, mask: Tensor, num_not_pooled: Tensor | None = None) -> Tensor:
        """float32 [inputs, dimensions], from [inputs, tokens, dimensions] and a 0/1 mask [inputs, tokens].

        `num_not_pooled`: [inputs], how many of the first tokens are left out; None: none.
        """
        pooled = mask
        if num_not_pooled is not None:
            positions = torch.arange(mask.shape[1], device=mask.device)
            pooled = mask * (positions >= num_not_pooled[:, None])
        vectors = torch.cat([_pool(mode, hidden.float(), mask, pooled) for mode in self.modes], dim=-1)
        for head in self.heads:
            vectors = head(vectors)
        return vectors


def _pool(mode: PoolingMode, hidden: Tensor, mask: Tensor, pooled: Tensor) -> Tensor:
    """Pools the tokens in `pooled`, which are at the end of those in `mask`; both [inputs, tokens]."""
    rows = torch.arange(len(hidden), device=hidden.device)
    is_left_out = ~pooled.bool().unsqueeze(-1)  # [inputs, tokens, 1]
    match mode:
        case "mean":
            return hidden.masked_fill(is_left_out, 0).sum(1) / pooled.sum(1, keepdim=True)
        case "mean_sqrt_len_tokens":
            return hidden.masked_fill(is_left_out, 0).sum(1) / pooled.sum(1, keepdim=True).sqrt()
        case "weightedmean":
            weights = pooled * torch.arange(1, pooled.shape[1] + 1, device=pooled.device)
            total = weights.sum(1, keepdim=True)
            return (hidden * weights.unsqueeze(-1)).masked_fill(is_left_out, 0).sum(1) / total
        case "max":
            return hidden.masked_fill(is_left_out, -torch.inf).amax(1)
        case "cls":
            return hidden[rows, pooled.int().argmax(1)]
        case "lasttoken":
            return hidden[rows, mask.sum(1) - 1]


def _modules(directory: Path) -> Sequence[tuple[str, Path]]:
    """Kinds and places of the modules: a Transformer in the directory itself, a Pooling, and others."""
    name = str(directory)
    modules = []
    for module in read_modules(directory, name) or ():
        if not module.type.startswith(_OWN) or module.kind not in ("Transformer", "Pooling", *_HEADS):
            raise UnsupportedModel(name, f"its module {module.kind} is not one we compute")
        modules.append((module.kind, module.path))
    kinds = [kind for kind, _ in modules]
    if missing := {"Transformer", "Pooling"} - set(kinds):
        raise UnsupportedModel(name, f"modules.json lists no {min(missing)}")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(_HEADS):
        raise UnsupportedModel(name, f"its modules {', '.join(kinds)} are in an order that we do not compute")
    if modules[0][1].resolve() != directory.resolve():
        raise UnsupportedModel(name, f"its transformer lies apart, in {modules[0][1].name}/")
    return modules


def _modes(directory: Path, config: dict[str, Any]) -> tuple[PoolingMode, ...]:
    """One or several: spelled `pooling_mode` in newer files, as flags in older ones."""
    declared = config.get("pooling_mode") or [mode for flag, mode in _MODE_FLAGS.items() if config.get(flag)]
    modes: list[Any] = (declared or ["mean"]) if isinstance(declared, list) else [declared]
    for mode in modes:
        if mode not in get_args(PoolingMode):
            raise UnsupportedModel(str(directory), f"its pooling {mode} is not one we compute")
    return tuple(modes)


def _transformer_settings(path: Path) -> dict[str, Any]:
    name = str(path.parent)
    config = read_object(path, name) if path.exists() else {}
    length = config.get("max_seq_length")
    if length is not None and not (type(length) is int and length > 0):
        reason = f"{path.name} has max_seq_length {length!r}; it must be a whole number of 1 or more"
        raise ModelLoadFailed(f"cannot load model {name!r}: {reason}")
    return {"max_length": length, "lowercases": bool(config.get("do_lower_case"))}
