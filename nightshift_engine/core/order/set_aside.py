"""Sequences of a class whose turn it was and for which too little memory was free.

    line       behind them, of the same flow
    flow a 0   a 1   a 2   a 3     the flow is held: nothing else of it is tried
    flow b 0   b 1
    flow c 0

Of each flow one is in the line. A few later ones that need less may pass it: of its own flow, which is then
held, and of others, after which the memory that becomes free is its own. So each flow can claim memory for
one at a time, once in each of its turns. Those behind it claim nothing: they only let others of their flow
pass, and come back to the queue when it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..sequence import Sequence
from .fair_turns import FairTurns
from .ranked_heap import RankedHeap

SET_ASIDE_MAX: Final = 4
"""Of a flow, which is then held."""
PASSES_ASIDE_MAX: Final = 32
"""Admissions of other flows of its class past one at the front of the line, out of their turn, after which
none of the class goes before it; as many of its own flow hold that. Were they counted together, a flow could
let its own pass and so claim the memory at once.
"""
TRIED_MAX: Final = 4
"""Of the line, from its front, in a step. The others wait for a place there."""


@dataclass(slots=True, eq=False)
class _Place:
    sequence: Sequence
    missing: int
    num_passes: int = 0
    num_own_passes: int = 0  # by its own flow

    @property
    def is_closed(self) -> bool:
        return self.num_passes >= PASSES_ASIDE_MAX


class SetAside:
    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self._places: dict[Sequence, _Place] = {}
        self._of_flow: dict[str, list[Sequence]] = {}  # the first of each is in the line
        self._line: dict[Sequence, _Place] = {}
        self._behind = RankedHeap[_Place](lambda place: self._places.get(place.sequence) is place)
        self._num_put = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def is_full(self, flow: str) -> bool:
        return len(self._of_flow.get(flow, ())) == SET_ASIDE_MAX

    def is_to_be_held(self, flow: str) -> bool:
        """Too many of it are here, or have passed the one in the line."""
        place = self._first_of(flow)
        return place is not None and (self.is_full(flow) or place.num_own_passes >= PASSES_ASIDE_MAX)

    @property
    def claiming(self) -> Sequence | None:
        """The first that has been passed as often as any may be: others wait for it."""
        return next((place.sequence for place in self._front() if place.is_closed), None)

    def front(self) -> Iterator[Sequence]:
        """Those of the line that are tried in a step."""
        return (place.sequence for place in self._front())

    def missing(self, sequence: Sequence) -> int:
        """Blocks that it lacked when it was tried last."""
        return self._places[sequence].missing

    @property
    def least_missing(self) -> int | None:
        """Blocks that the one of those behind others lacked that lacked fewest; None: there are none."""
        first = self._behind.first()
        return None if first is None else first[0]

    def put(self, sequence: Sequence, missing: int) -> None:
        """At the end of the line, or behind the one of its flow. One of the line stays, with what it lacks
        now.
        """
        if (place := self._line.get(sequence)) is not None:
            place.missing = missing
            return
        assert sequence not in self._places, f"{sequence.id} is behind another of its flow"
        assert not self.is_full(sequence.flow), f"flow {sequence.flow} is held"
        place = self._places[sequence] = _Place(sequence, missing)
        of_flow = self._of_flow.setdefault(sequence.flow, [])
        of_flow.append(sequence)
        if len(of_flow) == 1:
            self._line[sequence] = place
        else:
            self._num_put += 1
            self._behind.push(missing, self._num_put, place)

    def discard(self, sequence: Sequence) -> list[Sequence]:
        """Remove it; returns those behind it, which are removed as well."""
        behind = self.take_behind(sequence.flow) if sequence in self._line else []
        del self._places[sequence]
        of_flow = self._of_flow[sequence.flow]
        of_flow.remove(sequence)
        if not of_flow:
            del self._of_flow[sequence.flow], self._line[sequence]
        return behind

    def take_behind(self, flow: str) -> list[Sequence]:
        """Remove and return those behind the one of a flow."""
        of_flow = self._of_flow[flow]
        behind = of_flow[1:]
        del of_flow[1:]
        for sequence in behind:
            del self._places[sequence]
        return behind

    def take_least_missing(self) -> Sequence:
        """Remove and return, of those behind others, the one that lacked fewest blocks."""
        first = self._behind.first()
        assert first is not None, "none is behind another"
        self.discard(first[1].sequence)
        return first[1].sequence

    def passed_by(self, admitted: Sequence) -> None:
        """A sequence is admitted. Where that was its flow's turn more than another's, this is no pass."""
        start = self._turns.start(admitted.flow)
        for place in self._front():
            if place.sequence is admitted:
                continue
            if place.sequence.flow == admitted.flow:
                place.num_own_passes += 1
            elif self._turns.start(place.sequence.flow) <= start:
                place.num_passes += 1

    def passed_by_another_class(self) -> None:
        for place in self._front():
            place.num_passes += 1

    def check_integrity(self) -> None:
        """Assert that one of each flow is in the line, and has been passed by no more than may pass it."""
        assert list(self._line) == [each for each in self._places if each in self._line], "out of order"
        assert set(self._line) == {of_flow[0] for of_flow in self._of_flow.values()}, "not one of each flow"
        assert {*self._places} == {each for of_flow in self._of_flow.values() for each in of_flow}
        passes = [place.num_passes for place in self._line.values()]
        # One of a class between this and the one that waits for it may be overdue too, and goes first.
        assert all(each <= PASSES_ASIDE_MAX + 1 for each in passes), f"passed so often: {passes}"

    def _front(self) -> Iterator[_Place]:
        return islice(self._line.values(), TRIED_MAX)

    def _first_of(self, flow: str) -> _Place | None:
        of_flow = self._of_flow.get(flow)
        return None if of_flow is None else self._line[of_flow[0]]
