"""The order in which waiting sequences are admitted.

Classes come in order, except that one passed too often is overdue and admits one. Within a class:

    1. of every few admissions one for rows of jobs that too many others have passed, oldest first
    2. online requests, of the flow whose turn it is the oldest
    3. rows of jobs, of the flow whose turn it is (`fair_turns.py`) the next one in its order (`row_order.py`)

One for which too little memory is free is set aside, and a few others pass it (`set_aside.py`). Ages are
counted in admissions; there is no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as Seq

from ..fair_turns import FairTurns, TurnOrder
from ..ranked_heap import RankedHeap
from .row_order import RowOrder
from .sequence import Sequence
from .set_aside import SetAside

PASSES_BEFORE_DUE = 512
"""Admissions to its class after which a row comes first because of its age."""
DUE_EVERY = 8
"""One of so many admissions goes to a row that is due. More would put a large job in order of arrival."""
PASSES_BEFORE_OVERDUE = 64
"""Admissions of more urgent classes after which a class admits one of its own, whatever else waits."""


class ClassQueue:
    """Waiting sequences of one class."""

    def __init__(self, block_size: int, turns: FairTurns) -> None:
        self._block_size = block_size
        self._members: dict[Sequence, None] = {}
        self._online: dict[str, RankedHeap[Sequence]] = {}  # of each flow, by arrival
        self._online_turns = TurnOrder(turns)
        self._rows: dict[str, RowOrder] = {}  # of each flow
        self._row_turns = TurnOrder(turns)
        self._due = RankedHeap[Sequence](self._members.__contains__)  # rows, by when they are due
        self.aside = SetAside()
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._members) + len(self.aside)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.aside
        yield from self._members

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members or sequence in self.aside

    def add(self, sequence: Sequence) -> None:
        arrival, flow = sequence.urgency[1], sequence.flow
        self._members[sequence] = None
        if sequence.group is None:
            if flow not in self._online:
                self._online[flow] = RankedHeap(self._members.__contains__)
            self._online[flow].push(arrival, arrival, sequence)
            self._online_turns.add(flow)
            return
        if flow not in self._rows:
            self._rows[flow] = RowOrder(self._block_size)
        self._rows[flow].add(sequence)
        self._row_turns.add(flow)
        if sequence.admission_due is None:
            sequence.admission_due = self._num_taken + PASSES_BEFORE_DUE
        self._due.push(sequence.admission_due, arrival, sequence)

    def resume(self, sequence: Sequence) -> None:
        """Take back a sequence whose prefix has been computed: rows of its flow that begin so are next."""
        self.add(sequence)
        if sequence.group is not None:
            self._rows[sequence.flow].follow(sequence)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is admitted."""
        self._num_taken += 1
        self.aside.passed_by(sequence)
        self.discard(sequence)

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        """Let others pass a sequence that lacks so many blocks, unless too many are passed already."""
        if sequence not in self.aside:
            if self.aside.is_full:
                return
            self.discard(sequence)
        self.aside.put(sequence, missing)

    def discard(self, sequence: Sequence) -> None:
        if sequence in self.aside:
            self.aside.discard(sequence)
            return
        del self._members[sequence]
        flow = sequence.flow
        if sequence.group is None:
            self._online_turns.remove(flow)
            if self._online[flow].first() is None:
                del self._online[flow]
        else:
            self._row_turns.remove(flow)
            self._rows[flow].remove(sequence)

    def forget(self, flow: str) -> None:
        """Nothing of a flow is left in the class."""
        self._rows.pop(flow, None)

    def next(self, tried: Container[Sequence]) -> Sequence | None:
        """The sequence to admit next; None where all that may be have been tried."""
        found = self.aside.next(tried)
        if found is not None or self.aside.is_closed:
            return found
        first = self._first()
        return None if first in tried else first

    def _first(self) -> Sequence | None:
        """Of those that are not set aside."""
        due = self._due.first() if self._row_turns else None
        if due is not None and due[0] <= self._num_taken and self._num_taken % DUE_EVERY == 0:
            return due[1]
        flow = self._online_turns.first()
        if flow is not None:
            oldest = self._online[flow].first()
            assert oldest is not None, "a flow has requests, and none anywhere"
            return oldest[1]
        flow = self._row_turns.first()
        return None if flow is None else self._rows[flow].first()

    @property
    def first_flows(self) -> list[str]:
        """Of those that wait with online requests, and with rows, the ones whose turn it is; with those set
        aside.
        """
        flows = [
            flow for turns in (self._online_turns, self._row_turns) if (flow := turns.first()) is not None
        ]
        return flows + [sequence.flow for sequence in self.aside]


class WaitingQueue:
    """Waiting sequences of all classes."""

    def __init__(self, block_size: int, turns: Seq[FairTurns]) -> None:
        """`turns` of each class."""
        self._classes = [ClassQueue(block_size, each) for each in turns]
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

    def forget(self, rank: int, flow: str) -> None:
        """Nothing of a flow is left in a class, waiting or running."""
        self._classes[rank].forget(flow)

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that is admitted, past all less urgent ones."""
        self._classes[sequence.rank].take(sequence)
        self._passes[sequence.rank] = 0
        for rank in range(sequence.rank + 1, len(self._classes)):
            if self._is_overdue(rank):
                self._classes[rank].aside.passed_by(None)
            self._passes[rank] = self._passes[rank] + 1 if self._classes[rank] else 0

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        """Let others pass a sequence that lacks so many blocks, unless too many are passed already."""
        self._classes[sequence.rank].set_aside(sequence, missing)

    def missing(self, sequence: Sequence) -> int | None:
        """Blocks that a sequence lacked when it was set aside; None: it has not been."""
        aside = self._classes[sequence.rank].aside
        return aside.missing(sequence) if sequence in aside else None

    def has_any(self, rank: int) -> bool:
        return len(self._classes[rank]) > 0

    def next(self, rank: int, tried: Container[Sequence] = ()) -> Sequence | None:
        """The sequence of a class to admit next; None where all that may be have been tried."""
        return self._classes[rank].next(tried)

    def choose(self, rank: int, tried: Container[Sequence]) -> tuple[Sequence | None, bool]:
        """The sequence to admit next, and whether it is overdue: of a less urgent class that was passed too
        often. None, True: what is overdue lacks memory, and what becomes free is kept for it.
        """
        for lower in range(rank + 1, len(self._classes)):
            if self._is_overdue(lower):
                found = self._classes[lower].next(tried)
                if found is not None or self._classes[lower].aside.is_closed:
                    return found, True
        return self._classes[rank].next(tried), False

    def first_flows(self, rank: int) -> list[str]:
        return self._classes[rank].first_flows

    def _is_overdue(self, rank: int) -> bool:
        return self._passes[rank] >= PASSES_BEFORE_OVERDUE and len(self._classes[rank]) > 0
