"""Whose requests go first: those of a flow that has had less, so that one with many holds up no other.

Start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM Transactions on Networking 5(5), 1997), with tokens
for the length of a packet. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(slots=True)
class _Flow:
    num_members: int = 0
    next_start: int = 0  # of its next tokens: what it will have had by then


class FairTurns:
    """What each flow has had, in tokens, as the start of what it has next: the lowest start goes first.

        flow a   0 . . 512 . . 1024 . . 1536     four inputs of 512 tokens that came together
        flow b        512                        one that came while the second was computed: it goes next

    A queue that computes a flow's inputs in the order of their arrival gives each its start as it comes
    (`add`); one that chooses among them, or computes them in parts, counts what it computes (`join`,
    `serve`). A flow without members is remembered until the others have had as much, or no flow has any:
    one that comes and goes gets no more than one that stays.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._left: list[tuple[int, str]] = []  # a heap of flows that left, some of which have come back
        self._now = 0  # the start of what was computed last
        self.num_flows = 0
        """Those with members."""

    def num_members(self, flow: str) -> int:
        found = self._flows.get(flow)
        return 0 if found is None else found.num_members

    @property
    def num_members_in_all(self) -> int:
        return sum(each.num_members for each in self._flows.values())

    @property
    def num_remembered(self) -> int:
        """Flows, with members or without."""
        return len(self._flows)

    def add(self, flow: str, num_tokens: int) -> int:
        """The start of an input that joins the queue."""
        self.join(flow)
        start = self.start(flow)
        self._flows[flow].next_start = start + num_tokens
        return start

    def took(self, start: int) -> None:
        """What has this start, the lowest of all that wait, is computed."""
        self._now = max(self._now, start)
        while self._left and self._left[0][0] <= self._now:
            flow = heappop(self._left)[1]
            found = self._flows.get(flow)
            if found is not None and not found.num_members and found.next_start <= self._now:
                del self._flows[flow]

    def join(self, flow: str) -> None:
        """It has one more member."""
        of_flow = self._flows.setdefault(flow, _Flow())
        self.num_flows += of_flow.num_members == 0
        of_flow.num_members += 1

    def remove(self, flow: str, *, unserved: int = 0) -> None:
        """One of its members has left. `unserved`: tokens of it that were added and not computed."""
        of_flow = self._flows[flow]
        of_flow.num_members -= 1
        of_flow.next_start -= unserved
        if of_flow.num_members:
            return
        self.num_flows -= 1
        if not self.num_flows:
            self._flows.clear()
            self._left.clear()
        elif of_flow.next_start <= self._now:
            del self._flows[flow]
        else:
            heappush(self._left, (of_flow.next_start, flow))

    def start(self, flow: str) -> int:
        """Of what a flow with members has next."""
        next_start = self._flows[flow].next_start
        return next_start if next_start > self._now else self._now

    def serve(self, flow: str, num_tokens: int) -> None:
        """Tokens of a flow are computed, whether or not it was its turn."""
        self._flows[flow].next_start = self.start(flow) + num_tokens
