"""The flows of which something waits, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

STALE_MAX: Final = 64
"""Entries beyond two for each flow, after which those that no longer count are dropped."""


class FlowOrder:
    """Its first flow is the one of the lowest rank, of equal ones the one that has waited longest.

    One that is held is passed over until it is released. Each operation is logarithmic on average.
    """

    def __init__(self, rank: Callable[[str], int]) -> None:
        """`rank` of a flow of which something waits. It may rise at any time; when it falls, call `fell`."""
        self._rank = rank
        self._num_waiting: dict[str, int] = {}
        self._numbers: dict[str, int] = {}  # in the order in which they began to wait
        self._num_begun = 0
        self._held: set[str] = set()
        # Of each flow that is not held one entry at least. Those of flows that have left, are held, or have
        # another rank by now are mended when met.
        self._heap: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        """Of what is kept."""
        return len(self._heap)

    def add(self, flow: str) -> None:
        """One more of this flow waits."""
        count = self._num_waiting.get(flow, 0)
        self._num_waiting[flow] = count + 1
        if count == 0:
            self._num_begun += 1
            self._numbers[flow] = self._num_begun
            self._push(flow)

    def remove(self, flow: str) -> None:
        """One of this flow waits no more."""
        self._num_waiting[flow] -= 1
        if not self._num_waiting[flow]:
            del self._num_waiting[flow], self._numbers[flow]

    def fell(self, flow: str) -> None:
        """The rank of this flow, of which something waits, is lower than it was."""
        self._push(flow)

    def hold(self, flow: str) -> None:
        """Pass over this flow, whether or not something of it waits."""
        self._held.add(flow)

    def release(self, flow: str) -> None:
        """Pass over it no more."""
        if flow in self._held:
            self._held.remove(flow)
            if flow in self._numbers:
                self._push(flow)

    @property
    def held(self) -> set[str]:
        return self._held

    def first(self) -> str | None:
        heap = self._heap
        while heap:
            known, number, flow = heap[0]
            if self._numbers.get(flow) != number or flow in self._held:
                heappop(heap)
                continue
            rank = self._rank(flow)
            if rank == known:
                return flow
            heapreplace(heap, (rank, number, flow))
        return None

    def _push(self, flow: str) -> None:
        if flow in self._held:
            return
        heappush(self._heap, (self._rank(flow), self._numbers[flow], flow))
        if len(self._heap) > 2 * len(self._numbers) + STALE_MAX:
            counting = self._numbers.keys() - self._held
            self._heap = [(self._rank(each), self._numbers[each], each) for each in counting]
            heapify(self._heap)
