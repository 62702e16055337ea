"""The numbers of drafted tokens that pay, by the share accepted and the time that steps took. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from ..steps import StepShape, StepTimeModel

PRIOR_WEIGHT = 4.0
"""Trials that a first guess counts for."""
TRIALS_REMEMBERED = 64.0
"""Trials after which older ones count half."""


class Acceptance:
    """The share of drafted tokens of each kind that were the model's own."""

    def __init__(self, guesses: Seq[float]) -> None:
        """`guesses` are the shares by kind before anything is known."""
        self.shares = list(guesses)
        self._trials = [PRIOR_WEIGHT] * len(guesses)
        self._hits = [PRIOR_WEIGHT * guess for guess in guesses]

    def note(self, kind: int, *, is_hit: bool) -> None:
        """Counts a token that was compared with the model's."""
        if self._trials[kind] >= TRIALS_REMEMBERED:
            self._trials[kind] /= 2
            self._hits[kind] /= 2
        self._trials[kind] += 1
        self._hits[kind] += is_hit
        self.shares[kind] = self._hits[kind] / self._trials[kind]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step of sequences that decode."""

    step_s: float
    """Time without drafted tokens."""
    token_s: float
    """Time of one more drafted token."""
    attempt_s: float
    """Time of drafting, in which the device may have nothing to do."""

    @classmethod
    def predict(cls, times: StepTimeModel, shape: StepShape, attempt_s: float) -> StepCost | None:
        """The cost by the steps measured; None: too few were."""
        step_s = times.predict_s(shape)
        if step_s <= 0:
            return None
        more_s = times.predict_s(shape + StepShape(tokens=1))
        return cls(step_s, more_s - step_s, attempt_s)


def draft_lengths(
    shares: Seq[Seq[float]], num_rows: int, cost: StepCost, made_s: Seq[float] = ()
) -> list[int]:
    """The numbers of drafted tokens with which a step of `num_rows` sequences yields most tokens per second.

    `shares`: for each draft, the chances of its tokens to be accepted if those before were. `made_s`: for
    each draft, the seconds that one of its tokens takes to make; none if all are made. A token pays if its
    chance is more than what the step yields in the time that it costs; zeros, if the whole does not.
    """
    chances = [list(accumulate(draft, mul)) for draft in shares]
    tokens_s = [cost.token_s + seconds for seconds in made_s or [0.0] * len(chances)]
    plain = num_rows / cost.step_s
    rate, lengths = plain, [0] * len(chances)
    for _ in range(2):  # the second time with what the first yields
        lengths = [_length(draft, token_s * rate) for draft, token_s in zip(chances, tokens_s, strict=True)]
        more_s = sum(map(mul, lengths, tokens_s))
        rate = _rate(chances, lengths, num_rows, cost.step_s + cost.attempt_s + more_s)
    return lengths if rate > plain else [0] * len(chances)


def _length(chances: Seq[float], least: float) -> int:
    return next((n for n, chance in enumerate(chances) if chance <= least), len(chances))


def _rate(chances: Seq[Seq[float]], lengths: Seq[int], num_rows: int, seconds: float) -> float:
    """Tokens per second."""
    num_tokens = num_rows + sum(sum(draft[:n]) for draft, n in zip(chances, lengths, strict=True))
    return num_tokens / seconds


def steps_to_rest(attempt_s: float, step_s: float, share: float, most: int) -> int:
    """Steps without drafting after one that found nothing, so that drafting takes `share` of the time."""
    return min(most, int(attempt_s / (share * step_s))) if step_s > 0 else 0
