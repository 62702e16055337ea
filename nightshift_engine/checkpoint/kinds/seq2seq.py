"""Encoder-decoders: they generate a text from another one, such as its translation or its summary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .kind import TOKENIZER, Checkpoint, Kind, without_old_buffers
from .seq2seq_types import MODEL_TYPES, SINUSOIDAL_TYPES

_ARCHITECTURES = ("ForConditionalGeneration", "MarianMTModel", "T5WithLMHeadModel")


class Seq2seq(Kind):
    """An encoder, and a decoder that attends to its states."""

    name = "seq2seq"
    does = "translates or rewrites text"
    serves = f"encoder-decoders of text ({', '.join(MODEL_TYPES)})"
    needs, needed = TOKENIZER, "its tokenizer"

    def recognises(self, checkpoint: Checkpoint) -> bool:
        architecture = checkpoint.architecture
        if not checkpoint.is_encoder_decoder or checkpoint.has_modules or architecture is None:
            return False
        return checkpoint.config.model_type in MODEL_TYPES and architecture.endswith(_ARCHITECTURES)

    def missing(self, config: Any, names: Iterable[str]) -> list[str]:
        """All but sinusoids: older releases left them out of a checkpoint's files."""
        computed = "embed_positions.weight" if config.model_type in SINUSOIDAL_TYPES else ()
        return sorted(name for name in names if not name.endswith(computed))

    def unused(self, config: Any, loaded_as: str, names: Iterable[str]) -> list[str]:
        """All but sinusoids, which are computed, and embeddings that an older release saved twice."""
        computed = ("embed_positions.weight", "embed_positions.weights", "embed_tokens.weight")
        return sorted(name for name in without_old_buffers(names) if not name.endswith(computed))
