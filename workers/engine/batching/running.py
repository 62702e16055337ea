"""The sequences that run: most urgent first, and which of them must leave another its place."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from ..request import PRIORITY_RANKS
from .sequence import Sequence

TURN_TOKENS = 16
"""New tokens for which a sequence whose turn has come keeps its blocks: what each turn achieves."""


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

    def add(self, sequence: Sequence, *, has_turn: bool) -> None:
        """`has_turn`: it goes before more urgent ones, and must get somewhere before they have it back."""
        insort(self.by_rank[sequence.rank], sequence, key=urgency)
        if has_turn:
            sequence.turn_tokens = sequence.num_tokens + TURN_TOKENS

    def remove(self, sequence: Sequence) -> None:
        self.by_rank[sequence.rank].remove(sequence)

    def after(self, rank: int) -> Iterator[Sequence]:
        """Sequences of less urgent classes."""
        for members in self.by_rank[rank + 1 :]:
            yield from members

    def unprotected(self, sequence: Sequence, from_rank: int = 0) -> list[Sequence]:
        """Most urgent first, but those whose turn keeps them from the more urgent class of `sequence`."""
        return [
            other
            for members in self.by_rank[from_rank:]
            for other in members
            if other.rank == sequence.rank or other.num_tokens >= other.turn_tokens
        ]


def urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.urgency
