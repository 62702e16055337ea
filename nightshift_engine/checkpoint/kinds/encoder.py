"""Encoders: they embed texts, each as one vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_MAPPING_NAMES,
)

from .decoder import generates
from .images import is_image_encoder
from .kind import TOKENIZER, Checkpoint, Kind, weights_of, without_old_buffers
from .logit_score import is_generative_reranker

_PREDICTS = ("ForMaskedLM", "ForPreTraining")
"""Heads over the vocabulary, which an embedder may have been trained with and is saved with at times."""


class Encoder(Kind):
    """A base model, or a head over the vocabulary, if modules.json says how it embeds."""

    name = "encoder"
    does = "embeds text"
    serves = (
        "encoders, which embed it (...Model, or any of a vocabulary with the modules.json of "
        "sentence-transformers)"
    )
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture = checkpoint.architecture
        if checkpoint.is_encoder_decoder or is_image_encoder(checkpoint):
            return False
        if is_generative_reranker(checkpoint):
            return False
        if architecture is None:
            return checkpoint.has_modules
        if architecture in _base_models():
            return True
        has_head = generates(architecture, checkpoint.config) or architecture.endswith(_PREDICTS)
        return checkpoint.has_modules and has_head

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Those that are no head over the vocabulary: a classifier's head, or a projection behind the
        vectors. Without it, vectors would not be its own.
        """
        unknown = without_old_buffers(names)
        if not unknown:
            return []
        mappings = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_PRETRAINING_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)
        classes = [each[type(config)] for each in mappings if type(config) in each]
        heads = {key for with_head in classes for key in weights_of(with_head, config)}
        return sorted(set(unknown) - heads)


def _base_models() -> set[str]:
    names: set[str] = set()
    for value in MODEL_MAPPING_NAMES.values():
        names |= {value} if isinstance(value, str) else set(value)
    return {name for name in names if name.endswith(("Model", "Encoder"))}
