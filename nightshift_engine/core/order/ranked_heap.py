"""A heap whose members may also leave from its middle."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Member = TypeVar("Member")

DEPARTED_MAX: Final = 1_000
"""Members that have left and are still held, beside as many as are there."""


class RankedHeap(Generic[Member]):
    """Its first member is the one of the lowest rank, of equal ones that of the lowest number.

    One that has left is dropped when it would be the first, and else once those that left outnumber the
    others: each operation is logarithmic on average, and what is held is a multiple of what is there.
    """

    def __init__(self, is_there: Callable[[Member], bool]) -> None:
        self._is_there = is_there
        self._entries: list[tuple[int, int, Member]] = []
        self._size_max = DEPARTED_MAX

    def __len__(self) -> int:
        """Of all that are held."""
        return len(self._entries)

    def push(self, rank: int, number: int, member: Member) -> None:
        """`number`: another one for each member."""
        heappush(self._entries, (rank, number, member))
        if len(self._entries) > self._size_max:
            # One that left and came back before it was dropped is held twice.
            there = {entry[:2]: entry for entry in self._entries if self._is_there(entry[2])}
            self._entries = list(there.values())
            heapify(self._entries)
            self._size_max = 2 * len(self._entries) + DEPARTED_MAX

    def first(self) -> tuple[int, Member] | None:
        """Its rank, and the member; None if none is there."""
        entries = self._entries
        while entries and not self._is_there(entries[0][2]):
            heappop(entries)
        return (entries[0][0], entries[0][2]) if entries else None
