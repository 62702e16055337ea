"""What a checkpoint is: one that generates text, one that embeds it, or one that is not served.

Decided here and nowhere else, by the architecture that its config.json names and by whether the files of
sentence-transformers lie beside it: the same class may be either. What a library would load all the same, as
a classifier without its head, is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_MAPPING_NAMES,
)

from ..errors import ModelLoadFailed, UnsupportedModel
from .files import check_files, local_directory

CheckpointKind = Literal["decoder", "encoder"]

_GENERATES = ("ForCausalLM", "LMHeadModel", "WithLMHead")
_PREDICTS = ("ForMaskedLM", "ForPreTraining")
"""Heads over the vocabulary, which an embedder may have been trained with and is saved with at times."""
_OTHER_TASKS = {
    "ForSequenceClassification": "classifies or ranks texts",
    "ForTokenClassification": "classifies tokens",
    "ForQuestionAnswering": "marks answers in a text",
    "ForMultipleChoice": "chooses among answers",
    "ForNextSentencePrediction": "judges whether a sentence follows another",
    "ForConditionalGeneration": "generates from more than text",
    "RewardModel": "rates answers",
    "ForMaskedLM": "predicts masked tokens",
    "ForPreTraining": "has the heads of its pre-training",
}
_SERVED = (
    "served are models that generate text (...ForCausalLM) and those that embed it (...Model, or any of a "
    "vocabulary with the modules.json of sentence-transformers)"
)
OLD_BUFFERS = re.compile(r"(\.attn|\.attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|position_ids$")
"""Constants that older releases of transformers saved among the weights."""
_FURTHER_TOKENS = re.compile(r"(^|\.)mtp(_layers|_block)?\.")
"""Multi-token prediction (Qwen3-Next, MiMo): a draft of the tokens after the next, for speculation."""


def read_kind(model: str, revision: str | None = None) -> CheckpointKind:
    """The kind of a directory or hub id. Raises `UnsupportedModel` by name, or `ModelLoadFailed`."""
    directory = local_directory(model, revision)
    check_files(directory, model)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a broken file makes of the libraries below
        raise ModelLoadFailed(f"cannot load model {model!r}: {_said(error)}") from error
    return kind_of(config, model, has_modules=(directory / "modules.json").is_file())


def kind_of(config: Any, name: str, *, has_modules: bool) -> CheckpointKind:
    """The kind by configuration; `has_modules`: sentence-transformers says how it embeds.

    Raises `UnsupportedModel`, naming the architecture and what would be served.
    """
    if config.is_encoder_decoder:
        raise UnsupportedModel(name, f"{config.model_type} is an encoder-decoder; {_SERVED}")
    architecture = next(iter(config.architectures or ()), None)
    if architecture is None:
        if has_modules:
            return "encoder"
        raise UnsupportedModel(name, f"its config.json names no architecture; {_SERVED}")
    if _generates(architecture, config):
        if has_modules:
            return "encoder"
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            reason = f"transformers loads no decoder from a configuration of {config.model_type}"
            raise UnsupportedModel(name, f"{reason} ({architecture}); {_SERVED}")
        return "decoder"
    if architecture in _base_models() or (has_modules and architecture.endswith(_PREDICTS)):
        return "encoder"
    tasks = (task for suffix, task in _OTHER_TASKS.items() if architecture.endswith(suffix))
    raise UnsupportedModel(name, f"{architecture} {next(tasks, 'is not an architecture we know')}; {_SERVED}")


def require_kind(model: str, revision: str | None, wanted: CheckpointKind) -> None:
    """Raise `UnsupportedModel` if a checkpoint is not of the kind it is loaded as, or `ModelLoadFailed`."""
    if read_kind(model, revision) == wanted:
        return
    reason = (
        "its architecture generates text, and no modules.json of sentence-transformers says how it embeds"
        if wanted == "encoder"
        else "it embeds text; for generating, its architecture or its modules.json say otherwise"
    )
    raise UnsupportedModel(model, reason)


def unused_by_encoder(config: Any, names: Iterable[str]) -> list[str]:
    """Of the weights a base model does not use, those that are no head over the vocabulary.

    A classifier's head, or a projection behind the vectors: without it, vectors would not be its own.
    """
    unknown = [name for name in names if not OLD_BUFFERS.search(name)]
    if not unknown:
        return []
    mappings = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_PRETRAINING_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)
    classes = [each[type(config)] for each in mappings if type(config) in each]
    heads = {key for with_head in classes for key in _weights_of(with_head, config)}
    return sorted(set(unknown) - heads)


def unused_by_decoder(config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
    """Of the weights a decoder does not use, those that its text would need.

    Not needed are parts for images or sound that the named architecture has and its decoder has not, and
    layers that predict further tokens: so named, or as many beyond the last as the configuration says.
    """
    text_config = config.get_text_config()
    last: int = text_config.num_hidden_layers
    predicting = range(last, last + (getattr(text_config, "num_nextn_predict_layers", None) or 0))
    unknown = [
        name
        for name in names
        if not OLD_BUFFERS.search(name)
        and not _FURTHER_TOKENS.search(name)
        and not ((layer := re.search(r"\blayers\.(\d+)\.", name)) and int(layer[1]) in predicting)
    ]
    architecture = next(iter(config.architectures or ()), loaded_as)
    declared = getattr(transformers, architecture, None)
    if not unknown or declared is None or architecture == loaded_as:
        return sorted(unknown)
    return sorted(set(unknown) - set(_weights_of(declared, config)))


def _generates(architecture: str, config: Any) -> bool:
    if architecture.endswith(_GENERATES):
        return True
    return architecture.endswith("ForConditionalGeneration") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def _base_models() -> set[str]:
    names: set[str] = set()
    for value in MODEL_MAPPING_NAMES.values():
        names |= {value} if isinstance(value, str) else set(value)
    return {name for name in names if name.endswith(("Model", "Encoder"))}


def _weights_of(model_class: Any, config: Any) -> list[str]:
    with torch.device("meta"):
        return list(model_class(config).state_dict())


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, (OSError, ValueError)) and str(error) else repr(error)


def brings_own_code(directory: Path) -> bool:
    """Whether a checkpoint has code for its model beside it, which is never run."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return "AutoModel" in (config.get("auto_map") or {})
