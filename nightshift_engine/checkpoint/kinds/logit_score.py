"""Generative rerankers: decoders that score a pair of texts by their logits of tokens, such as yes and no.

Recognised by what says so and never by a name: LogitScore in the modules.json of sentence-transformers, or
the fields of config.json with which vLLM is told of one (its `hf_overrides`), which come first.
"""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ...errors import UnsupportedModel
from .kind import Checkpoint

MODULE = "LogitScore"


def is_generative_reranker(checkpoint: Checkpoint) -> bool:
    """Raises `UnsupportedModel` for one that ranks more than text."""
    if not (has_token_fields(checkpoint.config) or MODULE in (checkpoint.modules or ())):
        return False
    if checkpoint.is_encoder_decoder or type(checkpoint.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = (
            f"it ranks by its logits of tokens, and {checkpoint.architecture} is no decoder of text alone"
        )
        raise UnsupportedModel(checkpoint.name, reason)
    return True


def has_token_fields(config: object) -> bool:
    """Whether vLLM's fields are there; the tokens alone may be left from a conversion to another head."""
    has_method = getattr(config, "is_original_qwen3_reranker", False) or getattr(config, "method", None)
    return bool(getattr(config, "classifier_from_token", None)) and bool(has_method)
