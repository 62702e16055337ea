"""Names of a classifier's outputs, and the functions applied to them, as its config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...checkpoint.files import read_object
from ...errors import UnsupportedModel
from ..prompts import FILE

Activation = Literal["softmax", "sigmoid", "identity"]

_ACTIVATIONS: Mapping[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}
"""Activations by the last part of the class's name in torch, as sentence-transformers stores it."""
_BY_PROBLEM: Mapping[str, Activation] = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


@dataclass(frozen=True, slots=True)
class Labels:
    """The outputs of a classifier, in their order."""

    names: tuple[str, ...]
    activation: Activation
    """Applied to a classification, as the pipeline of transformers does."""
    ranking_activation: Activation
    """Applied to a relevance, as the CrossEncoder of sentence-transformers does."""

    @classmethod
    def read(cls, config: Mapping[str, Any], num_outputs: int, name: str) -> Labels:
        """Reads the object in config.json. Raises `UnsupportedModel`, naming labels that are missing."""
        return cls(
            names=_names(config.get("id2label"), num_outputs, name),
            activation=_activation(config.get("problem_type"), num_outputs, name),
            ranking_activation=ranking_activation(config, num_outputs, name),
        )


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, with the activation that newer releases of sentence-transformers write to their own file.

    Raises `ModelLoadFailed`.
    """
    name = str(directory)
    config = read_object(directory / "config.json", name)
    own = read_object(directory / FILE, name) if (directory / FILE).exists() else {}
    if (declared := own.get("activation_fn")) is not None:
        config["sentence_transformers"] = {"activation_fn": declared}
    return config


def activated(logits: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Scores of one input, float32 [labels]."""
    match activation:
        case "identity":
            return logits
        case "sigmoid":
            # Written so that no exponential of either sign overflows.
            small = np.exp(-np.abs(logits))
            scores: NDArray[np.float32] = (np.where(logits >= 0, 1, small) / (1 + small)).astype(np.float32)
        case "softmax":
            powers = np.exp(logits - logits.max())
            scores = (powers / powers.sum()).astype(np.float32)
    return scores


def _names(id2label: object, num_outputs: int, name: str) -> tuple[str, ...]:
    """The names of the labels; without a map, transformers' own."""
    if id2label is None:
        return tuple(f"LABEL_{index}" for index in range(num_outputs))
    if not isinstance(id2label, dict) or not all(isinstance(label, str) for label in id2label.values()):
        raise UnsupportedModel(name, "id2label in its config.json is no map from numbers to texts")
    if any(not _is_utf8(label) for label in id2label.values()):
        raise UnsupportedModel(name, "id2label in its config.json has a label that UTF-8 cannot hold")
    keys = {str(index): index for index in range(num_outputs)}
    by_index = {keys[str(key)]: label for key, label in id2label.items() if str(key) in keys}
    wanted = set(keys.values())
    if by_index.keys() == wanted and len(id2label) == num_outputs:
        return tuple(by_index[index] for index in range(num_outputs))
    missing = ", ".join(map(str, sorted(wanted - by_index.keys())[:5])) or "none"
    unknown = ", ".join(sorted(str(key) for key in id2label if str(key) not in keys)[:5]) or "none"
    raise UnsupportedModel(
        name,
        f"id2label in its config.json does not name its {num_outputs} outputs (from 0): "
        f"missing: {missing}; belonging to none: {unknown}",
    )


def _is_utf8(text: str) -> bool:
    """JSON may have lone surrogates, and no answer can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _activation(problem_type: object, num_outputs: int, name: str) -> Activation:
    if problem_type is None:
        return "sigmoid" if num_outputs == 1 else "softmax"
    if problem_type not in _BY_PROBLEM:
        raise UnsupportedModel(
            name, f"its problem_type {problem_type!r} is not one of {', '.join(_BY_PROBLEM)}"
        )
    # A softmax over one output would be 1 for every text: transformers takes the sigmoid.
    activation = _BY_PROBLEM[str(problem_type)]
    return "sigmoid" if num_outputs == 1 and activation == "softmax" else activation


def ranking_activation(config: Mapping[str, Any], num_outputs: int, name: str) -> Activation:
    """The activation that config.json declares for relevance. Raises `UnsupportedModel`."""
    declared = (config.get("sentence_transformers") or {}).get("activation_fn")
    declared = declared or config.get("sbert_ce_default_activation_function")
    if declared is None:
        return "sigmoid" if num_outputs == 1 else "identity"
    activation = _ACTIVATIONS.get(str(declared).rpartition(".")[2])
    if activation is None or (activation == "softmax" and num_outputs == 1):
        raise UnsupportedModel(name, f"its activation_fn {declared!r} is not one we compute")
    return activation
