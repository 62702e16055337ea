"""Drafts that a test makes: mostly what the model is known to answer, now and then something else."""

import random
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from nightshift_engine import Engine
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.speculator import DraftModel, Speculator, _Draft
from nightshift_engine.core.steps import StepShape
from nightshift_engine.engine.drafting import Drafting
from tests.unit.engine.tiny.decoders import VOCAB_SIZE


class Guessing(Speculator):
    """Drafts by known answers, of any length."""

    def __init__(self, answers: Mapping[str, Seq[int]], chance: random.Random, right: float = 0.8) -> None:
        super().__init__()
        self._answers, self._chance, self._right = answers, chance, right

    def _propose(self, sequence: Sequence) -> _Draft:
        most = min(self._chance.randint(0, 7), sequence.num_tokens_max - 1 - sequence.num_tokens)
        answer = self._answers.get(sequence.id, ())[sequence.num_output_tokens :]
        tokens = [self._guess(token) for token in answer[: max(0, most)]]
        return _Draft(tokens, [0] * len(tokens))

    def _lengths(self, shape: Any, proposals: Any) -> list[int]:
        return [len(draft.tokens) for _, draft in proposals]

    def note_attempt(self, seconds: float) -> None:
        """Learns nothing: a slow machine would let it rest."""

    def _guess(self, token: int) -> int:
        return token if self._chance.random() < self._right else self._chance.randrange(VOCAB_SIZE)


class OfFixedCost(Speculator):
    """Drafts as in production, but takes no time, and neither a step's length nor a pause is measured."""

    def __init__(self, model: DraftModel | None = None) -> None:
        super().__init__(model)
        for tokens in range(1, 40):
            super().observe(StepShape(tokens, 0, 1 + tokens % 3), 0.010 + 0.0001 * tokens)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns nothing."""

    def note_attempt(self, seconds: float) -> None:
        """Learns nothing."""


def with_fixed_cost(engine: Engine) -> Engine:
    assert engine._drafting is not None, "it drafts unless it is off"
    return speculating(engine, OfFixedCost(engine._drafting.speculator._model))


def with_guesses(engine: Engine, answers: Mapping[str, Seq[int]], chance: random.Random) -> Engine:
    return speculating(engine, Guessing(answers, chance))


def speculating(engine: Engine, speculator: Speculator) -> Engine:
    """An engine that drafts with `speculator`, whatever its configuration says."""
    engine._drafting = Drafting(speculator, engine._batcher, overlaps=engine._overlaps)
    return engine
