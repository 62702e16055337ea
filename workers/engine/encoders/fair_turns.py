"""Whose inputs go first: those of a flow that has had less, so that one with many holds up no other.

Start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM Transactions on Networking 5(5), 1997), with tokens
for the length of a packet. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Flow:
    num_waiting: int = 0
    next_start: int = 0  # of its next input: what it will have had by then


class FairTurns:
    """The starts of inputs, in tokens: lower ones go first. Of one flow alone they are in order of arrival.

        flow a   0 . . 512 . . 1024 . . 1536     four inputs of 512 tokens that came together
        flow b        512                        one that came while the second was computed: it goes next

    A flow of which nothing waits is forgotten, and begins again where the others are.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._now = 0  # the start of the input that was computed last

    def num_waiting(self, flow: str) -> int:
        found = self._flows.get(flow)
        return 0 if found is None else found.num_waiting

    @property
    def num_waiting_in_all(self) -> int:
        return sum(each.num_waiting for each in self._flows.values())

    def add(self, flow: str, num_tokens: int) -> int:
        """The start of an input that joins the queue."""
        of_flow = self._flows.setdefault(flow, _Flow())
        start = max(self._now, of_flow.next_start)
        of_flow.next_start = start + num_tokens
        of_flow.num_waiting += 1
        return start

    def took(self, start: int) -> None:
        """An input with this start is computed because it was its turn."""
        self._now = max(self._now, start)

    def remove(self, flow: str) -> None:
        """One of its inputs has left the queue."""
        of_flow = self._flows[flow]
        of_flow.num_waiting -= 1
        if not of_flow.num_waiting:
            del self._flows[flow]
