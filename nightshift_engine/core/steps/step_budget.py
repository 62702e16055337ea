"""How many bulk tokens a step may hold, so that interactive requests do not wait long for it.

In force while there is interactive traffic. Bulk is never kept out for good: its prompts always get a small
chunk, or as much time as decoding takes; its decoding rows are left out of steps with an interactive prompt
only, and of no more than a few in a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..sequence import Sequence
from .step_time import StepShape, StepTimeModel

MIN_CHUNK_TOKENS = 16
"""Of bulk prompts, in a step whose time is spent already."""
CHUNK_TIME_SHARE = 1.0
"""Time that bulk prompts may add to a step whose decoding rows alone take longer than the budget: so many
rows that decode also need a flow of new ones, or few are left and the step is as long as before."""
SECONDS_REMEMBERED = 2.0
"""Time of steps after the last interactive sequence during which another one is expected. Time, not
steps: where these are slow, few of them are many seconds."""


class StepBudget:
    """A time per step, in force while there is interactive traffic; `budget_ms` None means never."""

    def __init__(self, budget_ms: float | None) -> None:
        self._budget_s = budget_ms / 1000 if budget_ms is not None else None
        self.times = StepTimeModel()
        self._seconds_to_remember = 0.0
        self.is_in_force = False
        self._planned = _Sum()
        self._decoding = _Sum()  # bulk rows that decode, not planned yet
        self._has_interactive_prompt = False
        self._has_bulk_prompt = False

    def start_step(self, has_interactive: bool, running_bulk: Iterable[Sequence]) -> None:
        """Begin to plan a step."""
        if self._budget_s is None:
            return
        if has_interactive:
            self._seconds_to_remember = SECONDS_REMEMBERED
        self.is_in_force = self._seconds_to_remember > 0 and self.times.is_trusted
        self._planned, self._decoding = _Sum(), _Sum()
        self._has_interactive_prompt = self._has_bulk_prompt = False
        if self.is_in_force:
            rows = [sequence.num_tokens for sequence in running_bulk if _is_decoding(sequence)]
            self._decoding.add(len(rows), sum(rows), len(rows))

    def allow(self, sequence: Sequence, wanted: int) -> int:
        """How many of the `wanted` next tokens of a sequence this step has time for."""
        assert self._budget_s is not None, "in force without a budget"
        if sequence.rank == 0:
            return wanted
        if _is_decoding(sequence):
            is_late = self._has_interactive_prompt and self._predict_with(sequence) > self._budget_s
            return 0 if is_late else wanted
        limit_s, least = self._budget_s, 0
        if not self._has_interactive_prompt:
            limit_s = max(limit_s, (1 + CHUNK_TIME_SHARE) * self.times.predict_s(self._decoding.shape))
            least = 0 if self._has_bulk_prompt else MIN_CHUNK_TOKENS
        others = self._planned.shape + self._decoding.shape
        room = self.times.tokens_within(others, sequence.num_computed_tokens, limit_s)
        return wanted if room is None else min(wanted, max(room, least))

    def note(self, sequence: Sequence, num_tokens: int) -> None:
        """A sequence's tokens have been planned."""
        self._planned.add(num_tokens, sequence.num_computed_tokens + num_tokens, 1)
        if sequence.rank == 0:
            self._has_interactive_prompt |= not _is_decoding(sequence)
        elif _is_decoding(sequence):
            self._decoding.add(-1, -sequence.num_tokens, -1)
        else:
            self._has_bulk_prompt = True

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a measured step."""
        if self._budget_s is not None:
            self.times.observe(shape, seconds)
            self._seconds_to_remember -= seconds

    def _predict_with(self, row: Sequence) -> float:
        return self.times.predict_s(self._planned.shape + StepShape(1, row.num_tokens, 1))


class _Sum:
    """A shape that grows row by row."""

    __slots__ = ("kv_tokens", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = self.kv_tokens = self.sequences = 0

    @property
    def shape(self) -> StepShape:
        return StepShape(self.tokens, self.kv_tokens, self.sequences)

    def add(self, tokens: int, kv_tokens: int, sequences: int) -> None:
        self.tokens += tokens
        self.kv_tokens += kv_tokens
        self.sequences += sequences


def _is_decoding(sequence: Sequence) -> bool:
    return sequence.num_uncomputed_tokens == 1
