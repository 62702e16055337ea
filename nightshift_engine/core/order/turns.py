"""Whose turn it is: heaps from which members leave, what each flow has had, and the flows that wait."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

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
