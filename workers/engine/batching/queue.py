"""The order in which waiting sequences are admitted.

Classes come in order, except that one passed too often is overdue and admits one. Within a class:

    1. of every few admissions one for rows of jobs that too many others have passed, oldest first
    2. online requests, oldest first
    3. rows of jobs: those that share the most whole blocks with the row taken last, then the longest. So
       equal beginnings come together (this walks the trie of all prompts depth first), and where nothing
       is shared a job does not end with one long answer computed alone

Ages are counted in admissions; there is no clock. Every operation is logarithmic in what waits, but for the
shifting of one array of pointers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from ..request import PRIORITY_RANKS
from .sequence import Sequence

LENGTH_WINDOW = 128
"""Rows with one beginning among which the longest goes first: the nearest to the last one in prefix order."""
PASSES_BEFORE_DUE = 512
"""Admissions to its class after which a row comes first because of its age."""
DUE_EVERY = 8
"""One of so many admissions goes to a row that is due. More would put a large job in order of arrival."""
PASSES_BEFORE_OVERDUE = 64
"""Admissions of more urgent classes after which a class admits one of its own, whatever else waits."""
PREFIX_TOKENS = 1024
"""Tokens that are compared to find equal beginnings."""
TOKEN_BYTES = 4

_Place = Literal["online", "bulk"]
_Ranked = tuple[int, int, Sequence]
"""What it is ranked by, its arrival, and the sequence."""
_PrefixEntry = tuple[bytes, int, Sequence]
"""The beginning of its tokens, its arrival, and the sequence."""


class ClassQueue:
    """Waiting sequences of one class."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._places: dict[Sequence, _Place] = {}
        # Heaps may hold sequences that have left, or now wait elsewhere; they are dropped when met.
        self._online: list[_Ranked] = []  # by arrival
        self._due: list[_Ranked] = []  # rows of jobs, by when they are due
        self._longest: list[_Ranked] = []  # rows of jobs, by tokens they may still add, most first
        self._bulk: list[_PrefixEntry] = []  # rows of jobs, in prefix order
        self._bulk_entries: dict[Sequence, _PrefixEntry] = {}
        self._last_prefix = b""  # of the row taken last
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
            heappush(self._online, (arrival, arrival, sequence))
        else:
            self._places[sequence] = "bulk"
            entry = self._bulk_entries[sequence] = _prefix_entry(sequence)
            insort(self._bulk, entry)
            if sequence.admission_due is None:
                sequence.admission_due = self._num_taken + PASSES_BEFORE_DUE
            heappush(self._due, (sequence.admission_due, arrival, sequence))
            heappush(self._longest, (-_tokens_to_come(sequence), arrival, sequence))
        self._first = None

    def resume(self, sequence: Sequence) -> None:
        """Take back a sequence whose prefix has been computed: rows of jobs that begin so are next."""
        self.add(sequence)
        if sequence.group is not None:
            self._last_prefix = self._bulk_entries[sequence][0]

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is admitted."""
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
        due = _top(self._due, "bulk", self._places)
        if due is not None and due[0] <= self._num_taken and self._num_taken % DUE_EVERY == 0:
            return due[2]
        online = _top(self._online, "online", self._places)
        return online[2] if online is not None else self._next_bulk()

    def _next_bulk(self) -> Sequence:
        related = self._related()
        if related:
            sequence = max((sequence for _, _, sequence in related), key=_tokens_to_come)
        else:
            longest = _top(self._longest, "bulk", self._places)
            assert longest is not None, "a class has members, and none anywhere"
            sequence = longest[2]
        self._last_prefix = self._bulk_entries[sequence][0]
        return sequence

    def _related(self) -> list[_PrefixEntry]:
        """Rows near the one taken last that share the most blocks with it; none if none shares one."""
        place = bisect_left(self._bulk, (self._last_prefix,))
        neighbours = self._bulk[max(0, place - 1) : place + 1]
        num_shared = max((self._num_shared_bytes(entry[0]) for entry in neighbours), default=0)
        if num_shared == 0:
            return []
        beginning = self._last_prefix[:num_shared]
        start = bisect_left(self._bulk, (beginning,))
        stop = bisect_left(self._bulk, (beginning + b"\xff",))  # above all that begin so: tokens have 31 bits
        near = LENGTH_WINDOW // 2
        return self._bulk[max(start, place - near) : min(stop, place + near)]

    def _num_shared_bytes(self, prefix: bytes) -> int:
        """Of whole blocks that a row has in common with the row taken last."""
        last, size = self._last_prefix, self._block_bytes
        shared = 0
        while shared + size <= len(last) and last[shared : shared + size] == prefix[shared : shared + size]:
            shared += size
        return shared


class WaitingQueue:
    """Waiting sequences of all classes."""

    def __init__(self, block_size: int) -> None:
        self._classes = [ClassQueue(block_size) for _ in PRIORITY_RANKS]
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

    def resume(self, sequence: Sequence) -> None:
        """Take back a sequence whose prefix has been computed."""
        self._classes[sequence.rank].resume(sequence)

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


def _top(heap: list[_Ranked], place: _Place, places: dict[Sequence, _Place]) -> _Ranked | None:
    """The first of a heap that still waits in that place."""
    while heap and places.get(heap[0][2]) != place:
        heappop(heap)
    return heap[0] if heap else None


def _tokens_to_come(sequence: Sequence) -> int:
    """At the most, which is all that is known: exact for a request that ignores the end of its text."""
    return sequence.num_tokens_max - sequence.num_tokens
