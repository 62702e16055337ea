"""How long answers will become, and how many blocks those running will need at most if they do.

The final sizes are not needed all at once: when the longest ends, the others have released theirs. The peak
lies at the moment a sequence ends (the "past-future" scheduler of LightLLM).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import astuple, dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from .output_lengths import OutputLengths
from .sequence import Sequence

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Future:
    """What is expected of one running sequence."""

    remaining_tokens: int
    held_tokens: int
    """Tokens in the blocks that become free when it ends; those it shares do not."""
    slack_tokens: int
    """Tokens that the blocks it has can still take."""


class Futures:
    """Those of all running sequences, as columns."""

    def __init__(self, remaining: Column, held: Column, slack: Column) -> None:
        self._columns = np.stack([remaining, held, slack])

    @classmethod
    def of(cls, futures: Iterable[Future]) -> Futures:
        rows = np.array([astuple(future) for future in futures], dtype=np.int64).reshape(-1, 3)
        return cls(*rows.T)

    def plus(self, future: Future) -> Futures:
        """These and one more."""
        more = Futures.__new__(Futures)
        row = (future.remaining_tokens, future.held_tokens, future.slack_tokens)
        more._columns = np.concatenate([self._columns, np.array(row, dtype=np.int64)[:, None]], axis=1)
        return more

    def peak_growth_blocks(self, block_size: int) -> int:
        """Blocks needed beyond those held now, at the worst moment, at one token per sequence and step."""
        order = np.argsort(-self._columns[0])
        remaining, held, slack = self._columns[:, order]
        alive = np.arange(1, len(order) + 1)
        # When one ends: all with more to do are alive, all with less have ended.
        held_by_ended = held.sum() - held.cumsum()
        rounding = alive * block_size // 2
        peak = int((alive * remaining - slack.cumsum() + rounding - held_by_ended).max(initial=0))
        return -(-peak // block_size)


class Forecast:
    """What to expect of sequences, from the answers there have been."""

    def __init__(self, lengths: OutputLengths, block_size: int) -> None:
        self._lengths = lengths
        self._block_size = block_size

    def learn(self, sequence: Sequence) -> None:
        """`sequence` has come to its end."""
        self._lengths.add(sequence.group, sequence.num_output_tokens)

    def remaining_tokens(self, sequence: Sequence) -> int:
        """Tokens that a sequence is expected to add to those it has."""
        num_tokens = sequence.num_tokens
        if sequence.num_expected_tokens <= num_tokens or sequence.num_output_tokens == 0:
            expected = self._lengths.expect(sequence.group, sequence.num_output_tokens)
            sequence.num_expected_tokens = min(sequence.num_prompt_tokens + expected, sequence.num_tokens_max)
        return sequence.num_expected_tokens - num_tokens

    def of(self, sequence: Sequence) -> Future:
        """What is expected of a sequence that is admitted: it then holds blocks for all that it knows."""
        capacity = -(-sequence.num_tokens // self._block_size) * self._block_size
        return Future(
            remaining_tokens=self.remaining_tokens(sequence),
            held_tokens=capacity - (sequence.num_cached_tokens or 0),
            slack_tokens=capacity - sequence.num_tokens,
        )

    def of_all(self, running: Seq[Sequence]) -> Futures:
        """What is expected of running sequences, by columns: they are looked at in every step that admits."""
        known = _column(map(len, map(_token_ids, running)), running)
        num_tokens = known + _column(map(_num_promised, running), running)
        expected = _column(map(_num_expected_tokens, running), running)
        capacity = _column(map(len, map(_blocks, running)), running) * self._block_size
        cached = _column(map(_num_cached_tokens, running), running)
        unsure = (expected <= num_tokens) | (known == _column(map(_num_prompt_tokens, running), running))
        remaining = expected - num_tokens
        if unsure.any():
            for index in unsure.nonzero()[0].tolist():
                remaining[index] = self.remaining_tokens(running[index])
        return Futures(remaining, capacity - cached, capacity - num_tokens)


def _column(values: Iterable[int], sequences: Seq[Sequence]) -> Column:
    return np.fromiter(values, dtype=np.int64, count=len(sequences))


_token_ids = attrgetter("token_ids")
_num_promised = attrgetter("num_promised")
_num_expected_tokens = attrgetter("num_expected_tokens")
_num_prompt_tokens = attrgetter("num_prompt_tokens")
_num_cached_tokens = attrgetter("num_cached_tokens")
_blocks = attrgetter("blocks")
