"""Inputs of an encoder's next pass, and its wait for more, as in Triton's dynamic batcher. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Final, get_args

from ..core.order import FairTurns
from ..core.request import PriorityClass
from .config import EncoderConfig

LENGTH_RATIO_MAX = 1.5
"""Within a forward pass the longest input is at most this many times the shortest, which bounds padding..."""

SHORT_INPUT_TOKENS = 32
"""...except that inputs up to this length go together: another pass would cost more than their padding."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """Limits of one forward pass. A single input always may be a pass."""

    max_num_batched_tokens: int
    """Padding counted."""
    max_batch_size: int | None = None
    """Inputs; None: as many as the tokens allow."""
    bounds: tuple[int, ...] | None = None
    """The same as `EncoderConfig.length_buckets`."""

    def allow(self, count: int, shortest: int, longest: int) -> bool:
        """Whether so many inputs between these lengths may be one pass."""
        if count * longest > self.max_num_batched_tokens:
            return False
        if self.max_batch_size is not None and count > self.max_batch_size:
            return False
        if self.bounds is None:
            return longest <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * shortest)
        return bisect_left(self.bounds, shortest) == bisect_left(self.bounds, longest) or not self.bounds


@dataclass(frozen=True, slots=True)
class PassWindow:
    """Inputs of one pass, as `[first, last)` of an ascending list of lengths, with others chosen before."""

    first: int
    last: int
    count: int
    """Inputs of the pass, those chosen before included; so are the lengths."""
    shortest: int
    longest: int


def length_buckets(inputs: Sequence[Sized], max_num_batched_tokens: int) -> list[list[int]]:
    """Divides inputs into forward passes by their lengths: lists of indices, longest inputs first.

    A pass pads to at most `max_num_batched_tokens`; only an input longer than that exceeds it, alone.
    """
    limits = PassLimits(max_num_batched_tokens)
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
    lengths = [len(inputs[index]) for index in order]
    buckets = []
    while order:
        window = window_around(len(order) - 1, lengths, limits)
        buckets.append(order[window.first : window.last])
        del order[window.first : window.last], lengths[window.first : window.last]
    return buckets


def window_around(position: int, lengths: Sequence[int], limits: PassLimits) -> PassWindow:
    """The input at `position` and the nearest to it in length, while they may be one pass."""
    length = lengths[position]
    return widened(PassWindow(position, position + 1, 1, length, length), lengths, limits)


def window_beside(chosen: PassWindow, lengths: Sequence[int], limits: PassLimits) -> PassWindow:
    """The inputs of another ascending list that may go with a pass of inputs chosen before."""
    position = bisect_left(lengths, chosen.longest)
    beside = PassWindow(position, position, chosen.count, chosen.shortest, chosen.longest)
    return widened(beside, lengths, limits)


def widened(window: PassWindow, lengths: Sequence[int], limits: PassLimits) -> PassWindow:
    """The window with its neighbours, the nearest in length first, while they may be one pass."""
    first, last, count = window.first, window.last, window.count
    shortest, longest = window.shortest, window.longest
    while True:
        below = min(lengths[first - 1], shortest) if first > 0 else None
        above = max(lengths[last], longest) if last < len(lengths) else None
        if below is not None and not limits.allow(count + 1, below, longest):
            below = None
        if above is not None and not limits.allow(count + 1, shortest, above):
            above = None
        if below is not None and (above is None or longest - below <= above - shortest):
            first, shortest = first - 1, below
        elif above is not None:
            last, longest = last + 1, above
        else:
            return PassWindow(first, last, count, shortest, longest)
        count += 1


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
    """Among those of its class, lower ones go first (`FairTurns` of `core/order/turns.py`)."""
    queue: InputQueue | None = field(default=None, repr=False)
    """The queue in which it waits."""

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
        """The index of an input among those that wait, by length."""
        place = (waiting.num_tokens, waiting.number)
        position = bisect_left(self.by_length, place)
        assert self.by_length[position] == place, f"input {waiting.number} is not where its length says"
        return position

    def between(self, first: int, last: int) -> list[WaitingInput]:
        """The inputs at places `[first, last)` by length."""
        return [self.by_arrival[number] for _, number in self.by_length[first:last]]

    def check_integrity(self) -> None:
        """Asserts that both orders hold the same inputs, and that all of them know it."""
        expected = sorted((waiting.num_tokens, waiting.number) for waiting in self.by_arrival.values())
        assert self.by_length == expected, "orders disagree"
        in_turn = sorted((waiting.start, waiting.number) for waiting in self.by_arrival.values())
        assert self.by_turn == in_turn, "turns disagree"
        assert self.lengths == [num_tokens for num_tokens, _ in expected], "lengths disagree"
        assert all(waiting.queue is self for waiting in self.by_arrival.values()), "an input waits elsewhere"


CLASSES: Final[Sequence[PriorityClass]] = get_args(PriorityClass)
"""The most urgent first."""


class EncoderBatcher:
    """The inputs that wait. Not thread-safe.

    An input *gathers* until its batch is complete: until a batch has a preferred size, cannot grow, or has an
    input that waited for `max_queue_delay_microseconds`. Then it is *ready*, and goes with one of the next
    passes. Promises that the tests hold it to:

      - without a delay, nothing gathers;
      - a pass has the first ready input of the most urgent class, so no length starves within a class;
      - the first is of the flow that has had least, so no flow starves another of its class;
      - a pass never exceeds `max_batch_size`, nor the token budget unless a single input does;
      - an input leaves by `remove`, and in no other way.
    """

    def __init__(self, config: EncoderConfig, max_num_batched_tokens: int) -> None:
        batching = config.dynamic_batching
        self._batching = batching
        self._is_by_length = config.length_buckets != ()
        self._limits = PassLimits(max_num_batched_tokens, config.inputs_per_pass, config.length_buckets)
        self._preferred_sizes = sorted(set(batching.preferred_batch_size)) or [config.inputs_per_pass]
        self._gathering = {priority: InputQueue() for priority in CLASSES}
        self._ready = {priority: InputQueue() for priority in CLASSES}
        self._turns = {priority: FairTurns() for priority in CLASSES}
        self.num_waiting = 0

    def waiting_of(self, flow: str) -> int:
        return sum(turns.num_members(flow) for turns in self._turns.values())

    def add(self, waiting: WaitingInput) -> None:
        waiting.start = self._turns[waiting.priority].add(waiting.flow, waiting.num_tokens)
        gathers = self._batching.max_queue_delay_microseconds > 0
        (self._gathering if gathers else self._ready)[waiting.priority].add(waiting)
        self.num_waiting += 1

    def remove(self, waiting: WaitingInput, *, is_computed: bool = True) -> None:
        """Takes out an input. What was not computed is not counted as its flow's."""
        assert waiting.queue is not None, f"input {waiting.number} does not wait"
        waiting.queue.remove(waiting)
        unserved = 0 if is_computed else waiting.num_tokens
        self._turns[waiting.priority].remove(waiting.flow, unserved=unserved)
        self.num_waiting -= 1

    def wait_us(self, now_us: int) -> int | None:
        """Microseconds to wait for more inputs; 0: a pass can start; None: nothing waits."""
        self._release(now_us)
        if any(self._ready.values()):
            return 0
        if not any(self._gathering.values()):
            return None
        return self._oldest_us() + self._batching.max_queue_delay_microseconds - now_us

    def plan(self, now_us: int, num_tokens_max: int | None = None) -> list[WaitingInput]:
        """The inputs of the next pass; none while they gather. They stay in the queue.

        `num_tokens_max`: of this pass, where that is less than the budget of all.
        """
        limits = self._limits
        if num_tokens_max is not None:
            budget = min(limits.max_num_batched_tokens, num_tokens_max)
            limits = replace(limits, max_num_batched_tokens=budget)
        self._release(now_us)
        priority = next((priority for priority, queue in self._ready.items() if queue), None)
        if priority is None:
            return []
        self._turns[priority].took(self._ready[priority].first.start)
        choose = self._nearest_in_length if self._is_by_length else self._in_order
        chosen = choose(limits)
        size = self._preferred_size(len(chosen))
        return chosen if size in (None, len(chosen)) else choose(replace(limits, max_batch_size=size))

    def check_integrity(self) -> None:
        """Asserts that the queues hold what was counted, each of its own class."""
        for queues in (self._gathering, self._ready):
            for priority, queue in queues.items():
                queue.check_integrity()
                assert all(waiting.priority == priority for waiting in queue.by_arrival.values()), (
                    "a wrong class"
                )
        for queue in self._gathering.values():
            assert list(queue.by_arrival) == sorted(queue.by_arrival), "arrivals out of order"
        counted = {
            priority: len(self._gathering[priority]) + len(self._ready[priority]) for priority in CLASSES
        }
        by_turns = {priority: turns.num_members_in_all for priority, turns in self._turns.items()}
        assert by_turns == counted, f"{by_turns} have turns, {counted} wait"
        assert sum(counted.values()) == self.num_waiting, f"{self.num_waiting} counted, {counted} wait"

    # -- when a batch is complete

    def _release(self, now_us: int) -> None:
        while any(self._gathering.values()):
            batch = self._complete_batch(now_us)
            if not batch:
                return
            for waiting in batch:
                self._move(waiting, self._ready[waiting.priority])

    def _complete_batch(self, now_us: int) -> list[WaitingInput]:
        """The first batch, if it waits for no others; else none."""
        batch: list[WaitingInput] = []
        num_tokens, longest, is_full = 0, 0, False
        for waiting in self._in_turn(self._gathering.values()):
            num_tokens, longest = num_tokens + waiting.num_tokens, max(longest, waiting.num_tokens)
            padded = num_tokens if self._is_by_length else (len(batch) + 1) * longest
            if batch and (
                len(batch) == self._limits.max_batch_size or padded > self._limits.max_num_batched_tokens
            ):
                is_full = True
                break
            batch.append(waiting)
        if now_us >= self._oldest_us() + self._batching.max_queue_delay_microseconds:
            return batch
        size = self._preferred_size(len(batch))
        if size is not None:
            return batch[:size]
        return batch if is_full else []

    def _preferred_size(self, count: int) -> int | None:
        """The largest preferred size that so many inputs can have."""
        index = bisect_right(self._preferred_sizes, count)
        return self._preferred_sizes[index - 1] if index else None

    def _oldest_us(self) -> int:
        return min(queue.oldest.arrived_us for queue in self._gathering.values() if queue)

    # -- whose turn it is

    def _nearest_in_length(self, limits: PassLimits) -> list[WaitingInput]:
        """The first of the ready, then those nearest in length: of a class when those before are all in."""
        chosen: list[WaitingInput] = []
        window: PassWindow | None = None
        for queue in self._ready.values():
            if not queue:
                continue
            if window is None:
                window = window_around(queue.position_of(queue.first), queue.lengths, limits)
            else:
                window = window_beside(window, queue.lengths, limits)
            chosen += queue.between(window.first, window.last)
            if window.last - window.first < len(queue):
                break
        return chosen

    def _in_order(self, limits: PassLimits) -> list[WaitingInput]:
        chosen: list[WaitingInput] = []
        longest = 0
        for waiting in self._in_turn(self._ready.values()):
            longest = max(longest, waiting.num_tokens)
            if chosen and not limits.allow(len(chosen) + 1, longest, longest):
                break
            chosen.append(waiting)
        return chosen

    @staticmethod
    def _in_turn(queues: Iterable[InputQueue]) -> Iterator[WaitingInput]:
        return (waiting for queue in queues for waiting in queue.in_turn)

    @staticmethod
    def _move(waiting: WaitingInput, to: InputQueue) -> None:
        assert waiting.queue is not None, f"input {waiting.number} does not wait"
        waiting.queue.remove(waiting)
        to.add(waiting)
