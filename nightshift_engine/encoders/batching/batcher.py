"""Which inputs the next forward pass of an encoder takes, and how long it waits for more.

Triton's dynamic batcher, with two additions: a pass has a budget of padded tokens, and is filled up with the
inputs most like its first one in length. No torch, no clock: every method that needs the time is given it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, get_args

from ...core.order.fair_turns import FairTurns
from ...core.request import PriorityClass
from .config import EncoderConfig
from .length_buckets import PassLimits, Window, window_around, window_beside
from .waiting import InputQueue, WaitingInput

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
        """Take out an input. What was not computed is not counted as its flow's."""
        assert waiting.queue is not None, f"input {waiting.number} does not wait"
        waiting.queue.remove(waiting)
        unserved = 0 if is_computed else waiting.num_tokens
        self._turns[waiting.priority].remove(waiting.flow, unserved=unserved)
        self.num_waiting -= 1

    def wait_us(self, now_us: int) -> int | None:
        """How long to wait for more inputs; 0: a pass can start; None: nothing waits."""
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
        """Assert that the queues hold what was counted, each of its own class."""
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
        window: Window | None = None
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
