"""How much a step may hold where memory turns out to be short.

Running out of memory halves the step's tokens, then its sequences; steps that succeed double them again, and
each time that was too early the next attempt comes later. Pure: the engine reports what ran out.
"""

from __future__ import annotations

MIN_BATCHED_TOKENS = 16
"""Tokens below which halving a step saves too little."""
STEPS_BEFORE_GROWING = 64
STEPS_BEFORE_GROWING_MAX = 8192


class StepLimits:
    """The configured limits of a step, and the present ones, which are never larger."""

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._configured = (max_num_seqs, max_num_batched_tokens)
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._steps_succeeded = 0
        self._steps_before_growing = STEPS_BEFORE_GROWING
        self._has_grown = False

    @property
    def is_minimal(self) -> bool:
        """Nothing is left to shrink: a step is a few tokens of one sequence."""
        return self.max_num_seqs == 1 and self.max_num_batched_tokens <= MIN_BATCHED_TOKENS

    @property
    def is_reduced(self) -> bool:
        return (self.max_num_seqs, self.max_num_batched_tokens) != self._configured

    def shrink(self, num_tokens: int, num_sequences: int) -> bool:
        """After a step of this size ran out of memory. False: the limits were minimal already."""
        if self.is_minimal:
            return False
        if self._has_grown:  # growing was premature
            self._steps_before_growing = min(2 * self._steps_before_growing, STEPS_BEFORE_GROWING_MAX)
            self._has_grown = False
        self._steps_succeeded = 0
        if self.max_num_batched_tokens > MIN_BATCHED_TOKENS:
            smaller = min(num_tokens, self.max_num_batched_tokens) // 2
            self.max_num_batched_tokens = max(MIN_BATCHED_TOKENS, smaller)
        else:
            self.max_num_seqs = max(1, min(num_sequences, self.max_num_seqs) // 2)
        return True

    def grow_after_success(self) -> None:
        """After a step that fitted."""
        if not self.is_reduced:
            return
        self._steps_succeeded += 1
        if self._steps_succeeded < self._steps_before_growing:
            return
        self._steps_succeeded = 0
        self._has_grown = True
        seqs, tokens = self._configured
        if self.max_num_seqs < seqs:
            self.max_num_seqs = min(seqs, 2 * self.max_num_seqs)
        else:
            self.max_num_batched_tokens = min(tokens, 2 * self.max_num_batched_tokens)
