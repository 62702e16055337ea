"""Decoders: they generate text, one token after another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ...errors import UnsupportedModel
from .kind import TOKENIZER, Checkpoint, Kind, weights_of, without_old_buffers
from .logit_score import is_generative_reranker

_GENERATES = ("ForCausalLM", "LMHeadModel", "WithLMHead")
_FURTHER_TOKENS = re.compile(r"(^|\.)mtp(_layers|_block)?\.")
"""Multi-token prediction (Qwen3-Next, MiMo): a draft of the tokens after the next, for speculation."""


class Decoder(Kind):
    """A head over the vocabulary, unless the files of sentence-transformers say how it embeds."""

    name = "decoder"
    does = "generates text"
    serves = "decoders, which generate text (...ForCausalLM)"
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture, config = checkpoint.architecture, checkpoint.config
        if checkpoint.is_encoder_decoder or checkpoint.has_modules or not generates(architecture, config):
            return False
        if is_generative_reranker(checkpoint):
            return False
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            reason = f"transformers loads no decoder from a configuration of {config.model_type}"
            raise UnsupportedModel(checkpoint.name, f"{reason} ({architecture})")
        return True

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """Not needed are parts for images or sound that the named architecture has and its decoder has not,
        and layers that predict further tokens: so named, or as many beyond the last as the configuration
        says.
        """
        text_config = config.get_text_config()
        last: int = text_config.num_hidden_layers
        predicting = range(last, last + (getattr(text_config, "num_nextn_predict_layers", None) or 0))
        unknown = [
            name
            for name in without_old_buffers(names)
            if not _FURTHER_TOKENS.search(name)
            and not ((layer := re.search(r"\blayers\.(\d+)\.", name)) and int(layer[1]) in predicting)
        ]
        architecture = next(iter(config.architectures or ()), loaded_as)
        declared = getattr(transformers, architecture, None)
        if not unknown or declared is None or architecture == loaded_as:
            return sorted(unknown)
        return sorted(set(unknown) - set(weights_of(declared, config)))


def generates(architecture: str | None, config: Any) -> bool:
    """Whether an architecture has a head over its vocabulary for the next token of a text."""
    if architecture is None:
        return False
    if architecture.endswith(_GENERATES):
        return True
    return architecture.endswith("ForConditionalGeneration") and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
