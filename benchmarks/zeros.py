"""An encoder whose vectors are zeros: the cost that is left is that of a row's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from nightshift.fleet.models import Model, ModelKind
from nightshift_engine.encoders import EncoderText, Matryoshka, Prompts

DIMENSIONS: Final = 384
TOKENS: Final = 12  # per row
MODEL: Final = Model(
    id="zeros", kind=ModelKind.ENCODER, context_length=512, revision="1", dimensions=DIMENSIONS
)


class Zeros:
    """An encoder that does nothing."""

    max_length = 512
    max_num_batched_tokens = 8192
    dimensions = DIMENSIONS
    prompts = Prompts()
    matryoshka = Matryoshka()
    is_normalized = True
    reads_parts = True

    def tokenize_texts(self, texts: Sequence[EncoderText]) -> list[list[int]]:
        return [[1] * TOKENS for _ in texts]

    def objection(self, input: Sequence[int]) -> str | None:
        return None

    def encode(self, inputs: Sequence[Sequence[int]]) -> Any:
        return np.zeros((len(inputs), DIMENSIONS), np.float32)
