"""A step: the chunks it computes, and how it comes about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..sequence import Sequence
from .step_budget import StepBudget
from .step_time import StepShape


@dataclass(slots=True, eq=False)  # not frozen: making one takes half the time, and every row needs one
class Chunk:
    """`num_tokens` tokens of one sequence to compute in this step, from its `num_computed_tokens` on."""

    sequence: Sequence
    num_tokens: int
    num_sampled: int = 1
    """Its last rows that get logits, 1 to `num_tokens`, if it is the sequence's last: the next token is
    sampled from the last of them; those before it can check tokens that were guessed."""

    @property
    def is_last(self) -> bool:
        """Computes the sequence's last known token, so the next one can be sampled."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens


class Draft:
    """A step being planned: whose tokens are in it, and how many more it may take."""

    def __init__(self, max_num_batched_tokens: int, budget: StepBudget, deferrals_max: int) -> None:
        """`deferrals_max`: how many sequences it may find to have a prefix that is being computed."""
        self.tokens_left = max_num_batched_tokens
        self.deferrals_left = deferrals_max
        self.token_counts: dict[Sequence, int] = {}
        self.preempted: set[Sequence] = set()
        self.tried: set[Sequence] = set()
        """Set aside: there is no memory for them in this step."""
        self._budget = budget

    def tokens_for(self, sequence: Sequence) -> int:
        """How many of a sequence's next tokens fit."""
        wanted = sequence.num_uncomputed_tokens
        if wanted > self.tokens_left:
            wanted = self.tokens_left
        return self._budget.allow(sequence, wanted) if self._budget.is_in_force else wanted

    def put(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens <= self.tokens_left, f"{num_tokens} tokens, {self.tokens_left} left"
        if self._budget.is_in_force:
            self._budget.note(sequence, num_tokens)
        self.token_counts[sequence] = num_tokens
        self.tokens_left -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out that has to go after all."""
        self.preempted.add(sequence)
        self.tokens_left += self.token_counts.pop(sequence, 0)


def step_shape(chunks: Iterable[Chunk]) -> StepShape:
    """What the time of a step depends on. To be asked before it is launched."""
    tokens = kv_tokens = sequences = 0
    for chunk in chunks:
        tokens += chunk.num_tokens
        kv_tokens += chunk.sequence.num_computed_tokens + chunk.num_tokens
        sequences += 1
    return StepShape(tokens, kv_tokens, sequences)
