"""Classifiers: they score a text, or a pair of texts, for each of their labels. Rerankers have one label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from .kind import TOKENIZER, Checkpoint, Kind, without_old_buffers
from .logit_score import is_generative_reranker

_CLASSIFIES = "ForSequenceClassification"


class Classifier(Kind):
    """A head over labels, whatever lies beside it: it is never an embedder. Or a decoder that ranks."""

    name = "classifier"
    does = "scores text"
    serves = (
        f"classifiers and rerankers, which score it (...{_CLASSIFIES}, or ...ForCausalLM with the LogitScore "
        "of sentence-transformers or vLLM's classifier_from_token)"
    )
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        if is_generative_reranker(checkpoint):
            return True
        architecture = checkpoint.architecture
        if architecture is None or checkpoint.is_encoder_decoder:
            return False
        return architecture.endswith(_CLASSIFIES) and architecture in _classes(checkpoint.config)

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """All of them: scores come of the whole model."""
        return sorted(without_old_buffers(names))


def _classes(config: Any) -> set[str]:
    """What transformers loads a classifier of this configuration as."""
    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(config.model_type)
    return {found} if isinstance(found, str) else set(found or ())
