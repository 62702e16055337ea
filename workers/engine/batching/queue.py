"""The order in which waiting sequences are admitted.

Classes come in order, except that one passed too often is overdue and admits one. Within a class:

    1. preempted sequences, oldest first
    2. rows of jobs that too many others have passed
    3. online requests, oldest first
    4. rows of jobs: along their tokens, so that equal beginnings come together (the depth-first order of the
       trie of all prompts is the lexicographic order of their tokens); of the next few the longest first, so
       that a job does not end with one long answer computed alone

Ages are counted in admissions; there is no clock. Every operation is logarithmic in what waits, but for the
shifting of one array of pointers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from ..request import PRIORITY_RANKS
from .sequence import Sequence

LENGTH_WINDOW = 32
"""Rows next in prefix order among which the longest goes first. Wide enough for the end of a job, and narrow
enough that those passed over still find their prefix in memory."""
PASSES_MIN, PASSES_PER_WAITING = 64, 2
"""So many others may pass a row, at least and per sequence waiting when it came: its wait is at most about
twice that of first come, first served."""
PASSES_BEFORE_OVERDUE = 64
"""Admissions of more urgent classes after which a class admits one of its own, whatever else waits."""
PREFIX_TOKENS = 1024
"""Tokens that are compared to find equal beginnings."""

_Place = Literal["returned", "online", "bulk"]
_PrefixEntry = tuple[bytes, int, Sequence]
"""The beginning of its tokens, its arrival, and the sequence."""


class ClassQueue:
    """Waiting sequences of one class. `work` estimates the tokens a sequence has before it."""

    def __init__(self, work: Callable[[Sequence], int]) -> None:
        self._work = work
        self._places: dict[Sequence, _Place] = {}
        # Heaps may hold sequences that have left, or now wait elsewhere; they are dropped when met.
        self._returned: list[tuple[int, Sequence]] = []
        self._online: list[tuple[int, Sequence]] = []
        self._due: list[tuple[int, int, Sequence]] = []
        self._bulk: list[_PrefixEntry] = []  # in prefix order
        self._bulk_entries: dict[Sequence, _PrefixEntry] = {}
        self._cursor: tuple[bytes, int] = (b"", -1)
        self._num_taken = 0
        self._first: Sequence | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def add(self, sequence: Sequence) -> None:
        arrival = sequence.urgency[1]
        if sequence.group is None:
            self._places[sequence] = "online"
            heappush(self._online, (arrival, sequence))
        else:
            self._places[sequence] = "bulk"
            entry = self._bulk_entries[sequence] = _prefix_entry(sequence)
            insort(self._bulk, entry)
            if sequence.admission_due is None:
                passes = PASSES_MIN + PASSES_PER_WAITING * len(self)
                sequence.admission_due = self._num_taken + passes
            heappush(self._due, (sequence.admission_due, arrival, sequence))
        self._first = None

    def put_back(self, sequence: Sequence) -> None:
        """Take back a preempted sequence: it precedes those that never ran."""
        self._places[sequence] = "returned"
        heappush(self._returned, (sequence.urgency[1], sequence))
        self._first = None

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is admitted."""
        if self._places[sequence] != "returned":
            self._num_taken += 1
        self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        if self._places.pop(sequence) == "bulk":
            index = bisect_left(self._bulk, self._bulk_entries.pop(sequence))
            assert self._bulk[index][2] is sequence, f"{sequence.id} is not where its tokens say"
            del self._bulk[index]
        self._first = None

    def first(self) -> Sequence | None:
        """The sequence to admit next."""
        if self._first is None and self._places:
            self._first = self._find_first()
        return self._first

    def _find_first(self) -> Sequence:
        returned = self._top(self._returned, "returned")
        if returned is not None:
            return returned
        while self._due and self._places.get(self._due[0][2]) != "bulk":
            heappop(self._due)
        if self._due and self._due[0][0] <= self._num_taken:
            return self._due[0][2]
        return self._top(self._online, "online") or self._next_bulk()

    def _top(self, heap: list[tuple[int, Sequence]], place: _Place) -> Sequence | None:
        while heap and self._places.get(heap[0][1]) != place:
            heappop(heap)
        return heap[0][1] if heap else None

    def _next_bulk(self) -> Sequence:
        """The longest of the next few in prefix order, from where the last one was taken, round and round."""
        start = bisect_left(self._bulk, self._cursor)
        if start == len(self._bulk):
            start = 0
        window = self._bulk[start : start + LENGTH_WINDOW]
        self._cursor = window[0][:2]
        return max((sequence for _, _, sequence in window), key=self._work)


class WaitingQueue:
    """Waiting sequences of all classes."""

    def __init__(self, work: Callable[[Sequence], int]) -> None:
        self._classes = [ClassQueue(work) for _ in PRIORITY_RANKS]
        self._passes = [0] * len(self._classes)

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    def __iter__(self) -> Iterator[Sequence]:
        for members in self._classes:
            yield from members

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._classes[sequence.rank]

    def add(self, sequence: Sequence) -> None:
        self._classes[sequence.rank].add(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take back a preempted sequence."""
        self._classes[sequence.rank].put_back(sequence)

    def discard(self, sequence: Sequence) -> None:
        self._classes[sequence.rank].discard(sequence)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is admitted, past all less urgent ones."""
        self._classes[sequence.rank].take(sequence)
        self._passes[sequence.rank] = 0
        for rank in range(sequence.rank + 1, len(self._classes)):
            self._passes[rank] = self._passes[rank] + 1 if self._classes[rank] else 0

    def first(self, rank: int) -> Sequence | None:
        return self._classes[rank].first()

    def overdue(self, rank: int) -> Sequence | None:
        """The first of a class less urgent than `rank` that has been passed too often, if there is one."""
        for lower in range(rank + 1, len(self._classes)):
            if self._passes[lower] >= PASSES_BEFORE_OVERDUE and self._classes[lower]:
                return self._classes[lower].first()
        return None


def _prefix_entry(sequence: Sequence) -> _PrefixEntry:
    """Sorts as the tokens do. Compared as bytes, hence big-endian: far faster than number by number."""
    tokens = np.array(sequence.token_ids[: min(PREFIX_TOKENS, sequence.num_prompt_tokens)], dtype=">u4")
    return tokens.tobytes(), sequence.urgency[1], sequence
