"""The order in which waiting sequences are admitted.

Classes come in order, except that one passed too often is overdue and admits one. Within a class:

    1. of every few admissions one for rows of jobs that too many others have passed, oldest first
    2. online requests, of the flow whose turn it is the oldest
    3. rows of jobs, of the flow whose turn it is (`FairTurns`) the next one in its order (`RowOrder`)

One for which too little memory is free is set aside, and a few others pass it (`SetAside`). It is tried again
in its flow's turn, until others wait for it: then before all. Ages are counted in admissions; there is no
clock.
"""

from collections.abc import Container, Iterator
from collections.abc import Sequence as Seq
from typing import Final

from ..sequence import Sequence
from .aside import SetAside
from .rows import RowOrder
from .turns import FairTurns, FlowOrder, RankedHeap

PASSES_BEFORE_DUE: Final = 512
"""Admissions to its class after which a row comes first because of its age."""
DUE_EVERY: Final = 8
"""Every eighth admission may take a row that is due. More would put a large job in order of arrival."""
PASSES_BEFORE_OVERDUE: Final = 64
"""Admissions of more urgent classes after which a class admits one of its own, whatever else waits."""


class ClassQueue:
    """Waiting sequences of one class."""

    def __init__(self, block_size: int, turns: FairTurns) -> None:
        self._block_size = block_size
        self._turns = turns
        self._members: dict[Sequence, None] = {}
        self._online: dict[str, RankedHeap[Sequence]] = {}  # of each flow, by arrival
        self._online_turns = FlowOrder(turns.start)
        self._rows: dict[str, RowOrder] = {}  # of each flow
        self._row_turns = FlowOrder(turns.start)
        self._due: dict[str, RankedHeap[Sequence]] = {}  # rows of each flow, by when they are due
        self._due_order = FlowOrder(lambda flow: self._first_due(flow)[0])
        self._orders = (self._online_turns, self._row_turns, self._due_order)
        self.aside = SetAside(turns)
        self._aside_turns = FlowOrder(turns.start)
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._members) + len(self.aside)

    @property
    def has_online(self) -> bool:
        """Whether a request that is no row waits for its turn."""
        return bool(self._online)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.aside
        yield from self._members

    def add(self, sequence: Sequence) -> None:
        arrival, flow = sequence.urgency[1], sequence.flow
        if sequence.num_computed_tokens_max > 0 and self.aside.is_to_be_held(flow):
            self._bring_back(self.aside.take_behind(flow))  # it was preempted: its flow keeps its turns
            self._release(flow)
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
        if flow not in self._due:
            self._due[flow] = RankedHeap(self._members.__contains__)
        self._due[flow].push(sequence.admission_due, arrival, sequence)
        self._due_order.add(flow)
        if self._first_due(flow)[1] is sequence:
            self._due_order.fell(flow)

    def resume(self, sequence: Sequence) -> None:
        """Takes back a sequence whose prefix has been computed: rows of its flow that begin so are next."""
        self.add(sequence)
        if sequence.group is not None:
            self._rows[sequence.flow].follow(sequence)

    def take(self, sequence: Sequence) -> None:
        """Removes a sequence that is admitted."""
        self._num_taken += 1
        self.aside.passed_by(sequence)
        self.discard(sequence)
        self._hold_if_needed(sequence.flow)

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        """Lets others pass a sequence that lacks so many blocks."""
        if sequence not in self.aside:
            self.discard(sequence)
            self._aside_turns.add(sequence.flow)
        self.aside.put(sequence, missing)
        self._hold_if_needed(sequence.flow)

    def retry_least_missing(self) -> None:
        """Takes back, of those set aside behind others of their flow, the one that lacked fewest blocks."""
        sequence = self.aside.take_least_missing()
        self._bring_back([sequence])
        self._hold_if_needed(sequence.flow)

    def discard(self, sequence: Sequence) -> None:
        flow = sequence.flow
        if sequence in self.aside:
            self._aside_turns.remove(flow)
            behind = self.aside.discard(sequence)
            self._release(flow)
            self._bring_back(behind)
            return
        del self._members[sequence]
        if sequence.group is None:
            self._online_turns.remove(flow)
            if self._online[flow].first() is None:
                del self._online[flow]
        else:
            self._row_turns.remove(flow)
            self._rows[flow].remove(sequence)
            self._due_order.remove(flow)
            if self._due[flow].first() is None:
                del self._due[flow]

    def forget(self, flow: str) -> None:
        """Drops what is kept of a flow of which nothing is left in the class, waiting or running."""
        self._rows.pop(flow, None)

    def next(self, tried: Container[Sequence] = ()) -> Sequence | None:
        """The sequence to admit next; None where all that may be have been tried."""
        claiming = self.aside.claiming
        if claiming is not None:
            return None if claiming in tried else claiming
        due = self._first_if_due()
        if due is not None and due not in tried:
            return due
        first = self._first()
        candidates = [first] if first is not None and first not in tried else []
        if self.aside:
            # Where it is as much the turn of one set aside, that one comes first.
            candidates = [
                *(sequence for sequence in self.aside.front() if sequence not in tried),
                *candidates,
            ]
        return min(candidates, key=self._turn) if len(candidates) > 1 else next(iter(candidates), None)

    @property
    def first_flows(self) -> list[str]:
        """The flows whose turn it is with online requests, with rows, and with what is set aside."""
        orders = (self._online_turns, self._row_turns, self._aside_turns)
        return [flow for order in orders if (flow := order.first()) is not None]

    def check_integrity(self) -> None:
        """Asserts that each sequence is in one place, and that the flows are held that have to be."""
        self.aside.check_integrity()
        assert not self._members.keys() & {*self.aside}, "waits and is set aside"
        flows = {sequence.flow for sequence in self.aside}
        for order in self._orders:
            assert {flow for flow in flows if self.aside.is_full(flow)} <= order.held
            assert order.held <= {flow for flow in flows if self.aside.is_to_be_held(flow)}

    def _turn(self, sequence: Sequence) -> tuple[bool, int]:
        """Sorts online requests before rows, and both by what their flows have had."""
        return sequence.group is not None, self._turns.start(sequence.flow)

    def _first_if_due(self) -> Sequence | None:
        if self._num_taken % DUE_EVERY:
            return None
        flow = self._due_order.first()
        if flow is None:
            return None
        due_at, sequence = self._first_due(flow)
        return sequence if due_at <= self._num_taken else None

    def _first(self) -> Sequence | None:
        """The first that is not set aside."""
        flow = self._online_turns.first()
        if flow is not None:
            oldest = self._online[flow].first()
            assert oldest is not None, "a flow has requests, and none anywhere"
            return oldest[1]
        flow = self._row_turns.first()
        return None if flow is None else self._rows[flow].first()

    def _first_due(self, flow: str) -> tuple[int, Sequence]:
        """The row of a flow that is due first, and when."""
        first = self._due[flow].first()
        assert first is not None, f"no row of flow {flow} waits"
        return first

    def _bring_back(self, sequences: list[Sequence]) -> None:
        """Takes back what was set aside."""
        for sequence in sequences:
            self._aside_turns.remove(sequence.flow)
            self._release(sequence.flow)
            self.add(sequence)

    def _hold_if_needed(self, flow: str) -> None:
        if self.aside.is_to_be_held(flow):
            for order in self._orders:
                order.hold(flow)

    def _release(self, flow: str) -> None:
        for order in self._orders:
            order.release(flow)


class WaitingQueue:
    """Waiting sequences of all classes."""

    def __init__(self, block_size: int, turns: Seq[FairTurns]) -> None:
        """`turns` of each class."""
        self.classes = [ClassQueue(block_size, of_class) for of_class in turns]
        self._passes = [0] * len(self.classes)

    def __len__(self) -> int:
        return sum(map(len, self.classes))

    def __iter__(self) -> Iterator[Sequence]:
        for members in self.classes:
            yield from members

    def add(self, sequence: Sequence) -> None:
        self.classes[sequence.rank].add(sequence)

    def discard(self, sequence: Sequence) -> None:
        if self.is_claiming(sequence):
            self._passes[sequence.rank] = 0  # more urgent classes have waited for this one
        self.classes[sequence.rank].discard(sequence)

    def take(self, sequence: Sequence) -> None:
        """Removes a sequence that is admitted, past all less urgent ones."""
        self.classes[sequence.rank].take(sequence)
        self._passes[sequence.rank] = 0
        for rank in range(sequence.rank + 1, len(self.classes)):
            if self._is_overdue(rank):
                self.classes[rank].aside.passed_by_another_class()
            self._passes[rank] = self._passes[rank] + 1 if self.classes[rank] else 0

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        """Lets others of its class pass a sequence that lacks so many blocks."""
        self.classes[sequence.rank].set_aside(sequence, missing)

    def is_claiming(self, sequence: Sequence) -> bool:
        """Whether others of its class wait so that it gets the memory that becomes free."""
        return self.classes[sequence.rank].aside.claiming is sequence

    def choose(self, rank: int, tried: Container[Sequence]) -> tuple[Sequence | None, bool]:
        """The sequence to admit next, and whether it is overdue: of a less urgent class passed too often.

        None, True: what is overdue lacks memory, and what becomes free is kept for it.
        """
        for lower in range(rank + 1, len(self.classes)):
            if self._is_overdue(lower):
                overdue = self.classes[lower].next(tried)
                if overdue is not None or self.classes[lower].aside.claiming is not None:
                    return overdue, True
        return self.classes[rank].next(tried), False

    def check_integrity(self) -> None:
        for members in self.classes:
            members.check_integrity()

    def _is_overdue(self, rank: int) -> bool:
        return self._passes[rank] >= PASSES_BEFORE_OVERDUE and len(self.classes[rank]) > 0
