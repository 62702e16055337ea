"""The running sequences, most urgent first, and which of them may be preempted for which."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from .request import PRIORITY_RANKS
from .sequence import Sequence, urgency

OVERDUE_TOKENS = 16
"""New tokens that a sequence admitted as overdue computes before more urgent classes may preempt it."""


class RunningSet:
    """Running sequences, by class and then by arrival."""

    def __init__(self) -> None:
        self.by_rank: list[list[Sequence]] = [[] for _ in PRIORITY_RANKS]

    def __len__(self) -> int:
        return sum(map(len, self.by_rank))

    def __bool__(self) -> bool:
        return any(self.by_rank)

    def __iter__(self) -> Iterator[Sequence]:
        for members in self.by_rank:
            yield from members

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.by_rank[sequence.rank]

    def add(self, sequence: Sequence, *, is_overdue: bool) -> None:
        """`is_overdue`: admitted before more urgent classes, and protected from them for `OVERDUE_TOKENS`."""
        insort(self.by_rank[sequence.rank], sequence, key=urgency)
        if is_overdue:
            sequence.protected_until_tokens = sequence.num_tokens + OVERDUE_TOKENS

    def remove(self, sequence: Sequence) -> None:
        self.by_rank[sequence.rank].remove(sequence)

    def after(self, rank: int) -> Iterator[Sequence]:
        """Sequences of less urgent classes."""
        for members in self.by_rank[rank + 1 :]:
            yield from members

    def unprotected(self, sequence: Sequence, from_rank: int = 0) -> list[Sequence]:
        """Sequences that `sequence` may preempt, most urgent first: not those protected from its class."""
        return [
            other
            for members in self.by_rank[from_rank:]
            for other in members
            if other.rank == sequence.rank or other.num_tokens >= other.protected_until_tokens
        ]
