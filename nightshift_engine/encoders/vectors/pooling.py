"""How token vectors become one vector: the pooling a checkpoint declares for itself.

Reads the files sentence-transformers puts beside a model (`modules.json` and what it lists). What we do not
compute exactly as they say, we refuse: a wrong embedding looks like a right one. A checkpoint that declares
nothing gets the common default: mean pooling, or the last token where only that has seen the whole input, and
L2 normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...checkpoint.files import read_object
from ...checkpoint.modules import read_modules
from ...errors import ModelLoadFailed, UnsupportedModel
from .heads import Head, normalize, read_head

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]

_MODE_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""In the order in which their vectors follow one another."""

_HEADS = ("Dense", "LayerNorm", "Normalize")
_OWN = "sentence_transformers."


@dataclass(frozen=True, slots=True)
class Pooling:
    """What happens around the transformer itself."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    """Their vectors follow one another."""
    heads: tuple[Head, ...] = (normalize,)
    dimensions: int = 0
    """Of its vectors."""
    includes_prompt: bool = True
    """False: the tokens of a prompt are seen by the others, and not pooled."""
    max_length: int | None = None
    """Tokens per input the checkpoint was made for, where it says so."""
    lowercases: bool = False
    is_declared: bool = False
    """Whether the checkpoint's files say so, or it is the default."""

    @classmethod
    def read(cls, directory: Path, hidden_size: int, device: torch.device) -> Pooling:
        """What the files in a model's directory declare. Raises UnsupportedModel for what is not ours."""
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
    """Of the tokens in `pooled`, which are at the end of those in `mask`; both [inputs, tokens]."""
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
