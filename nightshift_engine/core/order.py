"""The order in which waiting sequences are admitted.

Classes come in order, except that one passed too often is overdue and admits one. Within a class:

    1. of every few admissions one for rows of jobs that too many others have passed, oldest first
    2. online requests, of the flow whose turn it is the oldest
    3. rows of jobs, of the flow whose turn it is (`FairTurns`) the next one in its order (`RowOrder`)

One for which too little memory is free is set aside, and a few others pass it (`SetAside`). It is tried again
in its flow's turn, until others wait for it: then before all. Ages are counted in admissions; there is no
clock.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final, Generic, TypeVar

import numpy as np

from .request import PRIORITY_RANKS
from .sequence import Sequence

PASSES_BEFORE_DUE: Final = 512
"""Admissions to its class after which a row comes first because of its age."""
DUE_EVERY: Final = 8
"""Every eighth admission may take a row that is due. More would put a large job in order of arrival."""
PASSES_BEFORE_OVERDUE: Final = 64
"""Admissions of more urgent classes after which a class admits one of its own, whatever else waits."""
SET_ASIDE_MAX: Final = 4
"""Sequences of a flow that are set aside before the flow is held."""
PASSES_ASIDE_MAX: Final = 32
"""Admissions of other flows, out of their turn, past one that is set aside, after which none of its class
goes before it. Its own flow is held after as many of its own: counted together, a flow could let its own pass
and so claim the memory at once."""
TRIED_MAX: Final = 4
"""Sequences that are set aside and tried in a step, from the front of their line."""
LENGTH_WINDOW: Final = 128
"""Rows with one beginning among which the longest goes first: the nearest to the last one in prefix order."""
PREFIX_TOKENS: Final = 1024
"""Tokens that are compared to find equal beginnings."""
TOKEN_BYTES: Final = 4
DEPARTED_MAX: Final = 1_000
"""Members of a heap that have left and are still held, beside as many as are there."""
STALE_MAX: Final = 64
"""Entries of a `FlowOrder` beyond two for each flow, after which those that no longer count are dropped."""

Member = TypeVar("Member")


class RankedHeap(Generic[Member]):
    """A heap from whose middle members may leave; first is the lowest rank, then the lowest number."""

    def __init__(self, is_there: Callable[[Member], bool]) -> None:
        self._is_there = is_there
        self._entries: list[tuple[int, int, Member]] = []
        self._size_max = DEPARTED_MAX

    def __len__(self) -> int:
        """Members that are held, those that have left included."""
        return len(self._entries)

    def push(self, rank: int, number: int, member: Member) -> None:
        """Adds a member; no two have the same `number`."""
        heappush(self._entries, (rank, number, member))
        if len(self._entries) > self._size_max:
            # One that left and came back before it was dropped is held twice.
            there = {entry[:2]: entry for entry in self._entries if self._is_there(entry[2])}
            self._entries = list(there.values())
            heapify(self._entries)
            self._size_max = 2 * len(self._entries) + DEPARTED_MAX

    def first(self) -> tuple[int, Member] | None:
        """The first member and its rank; None if none is there."""
        entries = self._entries
        while entries and not self._is_there(entries[0][2]):
            heappop(entries)
        return (entries[0][0], entries[0][2]) if entries else None


@dataclass(slots=True)
class _Flow:
    num_members: int = 0
    next_start: int = 0  # of its next tokens: what it will have had by then


class FairTurns:
    """Counts what each flow has had, in tokens: its next tokens start there, and the lowest start goes first.

        flow a   0 . . 512 . . 1024 . . 1536     four inputs of 512 tokens that came together
        flow b        512                        one that came while the second was computed: it goes next

    This is start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM Transactions on Networking 5(5), 1997). A
    queue that computes a flow's inputs in the order of arrival gives each its start as it comes (`add`); one
    that chooses among them, or computes them in parts, counts what it computes (`join`, `serve`). A flow
    without members is remembered until the others have had as much, or no flow has any: one that comes and
    goes gets no more than one that stays.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._left: list[tuple[int, str]] = []  # a heap of flows that left, some of which have come back
        self._now = 0  # the start of what was computed last
        self.num_flows = 0
        """Flows with members."""

    def num_members(self, flow: str) -> int:
        known = self._flows.get(flow)
        return 0 if known is None else known.num_members

    @property
    def num_members_in_all(self) -> int:
        return sum(flow.num_members for flow in self._flows.values())

    @property
    def num_remembered(self) -> int:
        """Flows, with members or without."""
        return len(self._flows)

    def add(self, flow: str, num_tokens: int) -> int:
        """Adds a member that is computed in the order of arrival; returns its start."""
        self.join(flow)
        start = self.start(flow)
        self._flows[flow].next_start = start + num_tokens
        return start

    def took(self, start: int) -> None:
        """Notes that what has this start, the lowest of all that wait, is computed."""
        self._now = max(self._now, start)
        while self._left and self._left[0][0] <= self._now:
            name = heappop(self._left)[1]
            flow = self._flows.get(name)
            if flow is not None and not flow.num_members and flow.next_start <= self._now:
                del self._flows[name]

    def join(self, name: str) -> None:
        """Adds a member of a flow."""
        flow = self._flows.setdefault(name, _Flow())
        self.num_flows += flow.num_members == 0
        flow.num_members += 1

    def remove(self, name: str, *, unserved: int = 0) -> None:
        """Removes a member of a flow, of which `unserved` tokens were added and not computed."""
        flow = self._flows[name]
        flow.num_members -= 1
        flow.next_start -= unserved
        if flow.num_members:
            return
        self.num_flows -= 1
        if not self.num_flows:
            self._flows.clear()
            self._left.clear()
        elif flow.next_start <= self._now:
            del self._flows[name]
        else:
            heappush(self._left, (flow.next_start, name))

    def start(self, flow: str) -> int:
        """The start of what a flow with members has next."""
        next_start = self._flows[flow].next_start
        return next_start if next_start > self._now else self._now

    def serve(self, flow: str, num_tokens: int) -> None:
        """Counts tokens of a flow that are computed, whether or not it was its turn."""
        self._flows[flow].next_start = self.start(flow) + num_tokens


class FlowOrder:
    """Flows of which something waits; first is the lowest rank, of equal ones the one that waited longest.

    A flow that is held is passed over until it is released. Each operation is logarithmic on average.
    """

    def __init__(self, rank: Callable[[str], int]) -> None:
        """`rank` of a flow of which something waits. It may rise at any time; when it falls, call `fell`."""
        self._rank = rank
        self._num_waiting: dict[str, int] = {}
        self._numbers: dict[str, int] = {}  # in the order in which they began to wait
        self._num_begun = 0
        self.held: set[str] = set()
        # Each flow that is not held has one entry at least. Entries of flows that have left, are held, or
        # have another rank by now are mended when met.
        self._heap: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        """Entries that are kept."""
        return len(self._heap)

    def add(self, flow: str) -> None:
        """Counts one more of this flow that waits."""
        count = self._num_waiting.get(flow, 0)
        self._num_waiting[flow] = count + 1
        if count == 0:
            self._num_begun += 1
            self._numbers[flow] = self._num_begun
            self._push(flow)

    def remove(self, flow: str) -> None:
        """Counts one of this flow that waits no more."""
        self._num_waiting[flow] -= 1
        if not self._num_waiting[flow]:
            del self._num_waiting[flow], self._numbers[flow]

    def fell(self, flow: str) -> None:
        """Notes that the rank of this flow, of which something waits, is lower than it was."""
        self._push(flow)

    def hold(self, flow: str) -> None:
        self.held.add(flow)

    def release(self, flow: str) -> None:
        if flow in self.held:
            self.held.remove(flow)
            if flow in self._numbers:
                self._push(flow)

    def first(self) -> str | None:
        heap = self._heap
        while heap:
            known, number, flow = heap[0]
            if self._numbers.get(flow) != number or flow in self.held:
                heappop(heap)
                continue
            rank = self._rank(flow)
            if rank == known:
                return flow
            heapreplace(heap, (rank, number, flow))
        return None

    def _push(self, flow: str) -> None:
        if flow in self.held:
            return
        heappush(self._heap, (self._rank(flow), self._numbers[flow], flow))
        if len(self._heap) > 2 * len(self._numbers) + STALE_MAX:
            counting = self._numbers.keys() - self.held
            self._heap = [(self._rank(name), self._numbers[name], name) for name in counting]
            heapify(self._heap)


_PrefixEntry = tuple[bytes, int, Sequence]
"""The beginning of a sequence's tokens, its arrival, and the sequence."""


class RowOrder:
    """Waiting rows of one flow's jobs: next is the longest of those that share most whole blocks with the
    last one.

    So equal beginnings come together, and where nothing is shared a job does not end with one long answer.
    """

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._sorted: list[_PrefixEntry] = []
        self._entries: dict[Sequence, _PrefixEntry] = {}
        self._longest = RankedHeap[Sequence](self._entries.__contains__)
        self._last_prefix = b""  # of the row taken last
        self._first: Sequence | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> None:
        entry = self._entries[sequence] = _prefix_entry(sequence)
        insort(self._sorted, entry)
        self._longest.push(-_tokens_to_come(sequence), sequence.urgency[1], sequence)
        self._first = None

    def follow(self, sequence: Sequence) -> None:
        """Makes rows that begin as this one, which waits here, the next."""
        self._last_prefix = self._entries[sequence][0]
        self._first = None

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sorted, self._entries.pop(sequence))
        assert self._sorted[index][2] is sequence, f"{sequence.id} is not where its tokens say"
        del self._sorted[index]
        self._first = None

    def first(self) -> Sequence:
        """The row to admit next, where at least one waits."""
        if self._first is None:
            self._first = self._find_first()
            self._last_prefix = self._entries[self._first][0]
        return self._first

    def _find_first(self) -> Sequence:
        related = self._related()
        if related:
            return max((sequence for _, _, sequence in related), key=_tokens_to_come)
        longest = self._longest.first()
        assert longest is not None, "no row waits"
        return longest[1]

    def _related(self) -> list[_PrefixEntry]:
        """Rows near the one taken last that share the most blocks with it; none if none shares one."""
        place = bisect_left(self._sorted, (self._last_prefix,))
        neighbours = self._sorted[max(0, place - 1) : place + 1]
        num_shared = max((self._num_shared_bytes(entry[0]) for entry in neighbours), default=0)
        if num_shared == 0:
            return []
        beginning = self._last_prefix[:num_shared]
        start = bisect_left(self._sorted, (beginning,))
        # Tokens have 31 bits, so this is above all that begin so.
        stop = bisect_left(self._sorted, (beginning + b"\xff",))
        near = LENGTH_WINDOW // 2
        return self._sorted[max(start, place - near) : min(stop, place + near)]

    def _num_shared_bytes(self, prefix: bytes) -> int:
        """Bytes of whole blocks that a row has in common with the row taken last."""
        last, size = self._last_prefix, self._block_bytes
        shared = 0
        while shared + size <= len(last) and last[shared : shared + size] == prefix[shared : shared + size]:
            shared += size
        return shared


def _prefix_entry(sequence: Sequence) -> _PrefixEntry:
    """Sorts as the tokens do. Compared as bytes, hence big-endian: far faster than number by number."""
    tokens = np.array(sequence.token_ids[: min(PREFIX_TOKENS, sequence.num_prompt_tokens)], dtype=">u4")
    return tokens.tobytes(), sequence.urgency[1], sequence


def _tokens_to_come(sequence: Sequence) -> int:
    """Tokens that may still come, at the most: exact for a request that ignores the end of its text."""
    return sequence.num_tokens_max - sequence.num_tokens


@dataclass(slots=True, eq=False)
class _Waiting:
    """A sequence that is set aside."""

    sequence: Sequence
    missing: int
    num_passes: int = 0
    num_own_passes: int = 0  # by its own flow

    @property
    def is_closed(self) -> bool:
        return self.num_passes >= PASSES_ASIDE_MAX


class SetAside:
    """Sequences of a class whose turn it was and for which too little memory was free.

        line       behind them, of the same flow
        flow a 0   a 1   a 2   a 3     the flow is held: nothing else of it is tried
        flow b 0   b 1
        flow c 0

    One of each flow is in the line. A few later ones that need less may pass it: of its own flow, which is
    then held, and of others, after which the memory that becomes free is its own. So each flow can claim
    memory for one at a time, once in each of its turns. Those behind it claim nothing: they only let others
    of their flow pass, and come back to the queue when it leaves.
    """

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._members: dict[Sequence, _Waiting] = {}
        self._by_flow: dict[str, list[Sequence]] = {}  # the first of each is in the line
        self._line: dict[Sequence, _Waiting] = {}
        self._behind = RankedHeap[_Waiting](lambda member: self._members.get(member.sequence) is member)
        self._num_put = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def is_full(self, flow: str) -> bool:
        return len(self._by_flow.get(flow, ())) == SET_ASIDE_MAX

    def is_to_be_held(self, flow: str) -> bool:
        """Whether too many of a flow are here, or have passed the one in the line."""
        sequences = self._by_flow.get(flow)
        return sequences is not None and (
            self.is_full(flow) or self._line[sequences[0]].num_own_passes >= PASSES_ASIDE_MAX
        )

    @property
    def claiming(self) -> Sequence | None:
        """The first that has been passed as often as any may be: others wait for it."""
        return next((member.sequence for member in self._front() if member.is_closed), None)

    def front(self) -> Iterator[Sequence]:
        """Sequences of the line that are tried in a step."""
        return (member.sequence for member in self._front())

    def missing(self, sequence: Sequence) -> int | None:
        """Blocks that it lacked when it was tried last; None: it is not here."""
        member = self._members.get(sequence)
        return None if member is None else member.missing

    @property
    def least_missing(self) -> int | None:
        """The fewest blocks that one behind another of its flow lacked; None: there is none."""
        first = self._behind.first()
        return None if first is None else first[0]

    def put(self, sequence: Sequence, missing: int) -> None:
        """Puts it at the end of the line, or behind the one of its flow; one of the line stays there."""
        if (member := self._line.get(sequence)) is not None:
            member.missing = missing
            return
        assert sequence not in self._members, f"{sequence.id} is behind another of its flow"
        assert not self.is_full(sequence.flow), f"flow {sequence.flow} is held"
        member = self._members[sequence] = _Waiting(sequence, missing)
        sequences = self._by_flow.setdefault(sequence.flow, [])
        sequences.append(sequence)
        if len(sequences) == 1:
            self._line[sequence] = member
        else:
            self._num_put += 1
            self._behind.push(missing, self._num_put, member)

    def discard(self, sequence: Sequence) -> list[Sequence]:
        """Removes it; returns those behind it, which are removed as well."""
        behind = self.take_behind(sequence.flow) if sequence in self._line else []
        del self._members[sequence]
        sequences = self._by_flow[sequence.flow]
        sequences.remove(sequence)
        if not sequences:
            del self._by_flow[sequence.flow], self._line[sequence]
        return behind

    def take_behind(self, flow: str) -> list[Sequence]:
        """Removes and returns those behind the first one of a flow."""
        sequences = self._by_flow[flow]
        behind = sequences[1:]
        del sequences[1:]
        for sequence in behind:
            del self._members[sequence]
        return behind

    def take_least_missing(self) -> Sequence:
        """Removes and returns, of those behind others, the one that lacked fewest blocks."""
        first = self._behind.first()
        assert first is not None, "none is behind another"
        self.discard(first[1].sequence)
        return first[1].sequence

    def passed_by(self, admitted: Sequence) -> None:
        """Counts an admission. Where that was its flow's turn more than another's, this is no pass."""
        start = self._turns.start(admitted.flow)
        for member in self._front():
            if member.sequence is admitted:
                continue
            if member.sequence.flow == admitted.flow:
                member.num_own_passes += 1
            elif self._turns.start(member.sequence.flow) <= start:
                member.num_passes += 1

    def passed_by_another_class(self) -> None:
        for member in self._front():
            member.num_passes += 1

    def check_integrity(self) -> None:
        """Asserts that one of each flow is in the line, and has been passed by no more than may pass it."""
        assert list(self._line) == [member for member in self._members if member in self._line], (
            "out of order"
        )
        assert set(self._line) == {flow[0] for flow in self._by_flow.values()}, "not one of each flow"
        assert {*self._members} == {sequence for flow in self._by_flow.values() for sequence in flow}
        passes = [member.num_passes for member in self._line.values()]
        # Each one that is tried may have to wait for the others, and before each for one of each other class.
        most = PASSES_ASIDE_MAX + TRIED_MAX * len(PRIORITY_RANKS) - 1
        assert all(count <= most for count in passes), f"passed so often: {passes}"

    def _front(self) -> Iterator[_Waiting]:
        return islice(self._line.values(), TRIED_MAX)


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
