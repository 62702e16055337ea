"""Sequences set aside, which lacked memory or a slot for their adapter, and how many others pass them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..request import PRIORITY_RANKS
from ..sequence import Sequence
from .turns import FairTurns, RankedHeap

SET_ASIDE_MAX: Final = 4
"""Sequences of a flow that are set aside before the flow is held."""
PASSES_ASIDE_MAX: Final = 32
"""Admissions of other flows, out of their turn, past one that is set aside, after which none of its class
goes before it. Its own flow is held after as many of its own: counted together, a flow could let its own pass
and so claim the memory at once."""
TRIED_MAX: Final = 4
"""Sequences that are set aside and tried in a step, from the front of their line."""


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

    def note_pass(self) -> None:
        if self.missing or not self.is_closed:  # one that lacks no memory is passed by those without adapters
            self.num_passes += 1


class SetAside:
    """Sequences of a class whose turn it was and for which too little memory was free, or no slot for
    their adapter: these lack no blocks, and claim a slot, never memory.

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
        return next((m.sequence for m in self._front() if m.is_closed and m.missing), None)

    @property
    def claimed_adapter(self) -> str | None:
        """The adapter of the first that has been passed so often and lacks a slot alone: of its class, those
        with another adapter wait for it.
        """
        return next((m.sequence.adapter for m in self._front() if m.is_closed and not m.missing), None)

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
                member.note_pass()

    def passed_by_another_class(self) -> None:
        for member in self._front():
            member.note_pass()

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
