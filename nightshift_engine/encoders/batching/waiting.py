"""Inputs that wait, and the queue of those of one class. No torch, no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field

from ...core.request import PriorityClass


@dataclass(slots=True, eq=False)  # one for each row: frozen ones take longer to make
class WaitingInput:
    """One input in the queue. `number` counts arrivals of all classes; times are of the engine's clock."""

    request_id: str
    input_index: int
    input: Sized
    priority: PriorityClass
    number: int
    arrived_us: int
    flow: str = ""
    start: int = 0
    """Among those of its class, lower ones go first (`engine/fair_turns.py`)."""
    queue: InputQueue | None = field(default=None, repr=False)
    """Where it waits."""

    @property
    def num_tokens(self) -> int:
        return len(self.input)


@dataclass(slots=True, eq=False)
class InputQueue:
    """Waiting inputs of one class, in three orders: by arrival, by turn, and by length."""

    by_arrival: dict[int, WaitingInput] = field(default_factory=dict)
    by_turn: list[tuple[int, int]] = field(default_factory=list)
    """Start and number of each."""
    by_length: list[tuple[int, int]] = field(default_factory=list)
    """Tokens and number of each."""
    lengths: list[int] = field(default_factory=list)
    """The tokens of `by_length`."""

    def __len__(self) -> int:
        return len(self.by_arrival)

    @property
    def oldest(self) -> WaitingInput:
        return next(iter(self.by_arrival.values()))

    @property
    def first(self) -> WaitingInput:
        """Whose turn it is."""
        return self.by_arrival[self.by_turn[0][1]]

    @property
    def in_turn(self) -> Iterator[WaitingInput]:
        return (self.by_arrival[number] for _, number in self.by_turn)

    def add(self, waiting: WaitingInput) -> None:
        insort(self.by_turn, (waiting.start, waiting.number))
        place = (waiting.num_tokens, waiting.number)
        position = bisect_left(self.by_length, place)
        self.by_length.insert(position, place)
        self.lengths.insert(position, waiting.num_tokens)
        self.by_arrival[waiting.number] = waiting
        waiting.queue = self

    def remove(self, waiting: WaitingInput) -> None:
        position = self.position_of(waiting)
        del self.by_length[position], self.lengths[position]
        del self.by_turn[bisect_left(self.by_turn, (waiting.start, waiting.number))]
        del self.by_arrival[waiting.number]
        waiting.queue = None

    def position_of(self, waiting: WaitingInput) -> int:
        """Its place by length."""
        place = (waiting.num_tokens, waiting.number)
        position = bisect_left(self.by_length, place)
        assert self.by_length[position] == place, f"input {waiting.number} is not where its length says"
        return position

    def between(self, first: int, last: int) -> list[WaitingInput]:
        """Those at places `[first, last)` by length."""
        return [self.by_arrival[number] for _, number in self.by_length[first:last]]

    def check_integrity(self) -> None:
        """Assert that both orders hold the same inputs, and that all of them know it."""
        expected = sorted((each.num_tokens, each.number) for each in self.by_arrival.values())
        assert self.by_length == expected, "orders disagree"
        in_turn = sorted((each.start, each.number) for each in self.by_arrival.values())
        assert self.by_turn == in_turn, "turns disagree"
        assert self.lengths == [num_tokens for num_tokens, _ in expected], "lengths disagree"
        assert all(each.queue is self for each in self.by_arrival.values()), "an input waits elsewhere"
