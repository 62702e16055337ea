"""Which inputs the next forward pass of an encoder takes, and how long it waits for more.

Triton's dynamic batcher, with two additions: a pass has a budget of padded tokens, and is filled up with the
inputs most like its first one in length. No torch, no clock: every method that needs the time is given it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from ..fair_turns import FairTurns
from ..ranked_heap import RankedHeap
from .config import EncoderConfig
from .length_buckets import PassLimits, Window, window_around, window_beside
from .waiting import LevelQueue, WaitingInput


class EncoderBatcher:
    """The inputs that wait. Not thread-safe.

    An input *gathers* until its batch is complete: until a batch has a preferred size, cannot grow, or has an
    input that waited for `max_queue_delay_microseconds`. Then it is *ready*, and goes with one of the next
    passes. Promises that the tests hold it to:

      - without a delay, nothing gathers;
      - a pass has the first ready input of the most urgent level, so no length starves within a level;
      - the first is of the flow that has had least, so no flow starves another of its level;
      - a pass never exceeds `max_batch_size`, nor the token budget unless a single input does;
      - an input leaves by `remove` or `expire`, and in no other way.
    """

    def __init__(self, config: EncoderConfig, max_num_batched_tokens: int) -> None:
        batching = config.dynamic_batching
        self._batching = batching
        self._is_by_length = config.length_buckets != ()
        self._limits = PassLimits(max_num_batched_tokens, config.inputs_per_pass, config.length_buckets)
        self._preferred_sizes = sorted(set(batching.preferred_batch_size)) or [config.inputs_per_pass]
        self._gathering = [LevelQueue() for _ in range(batching.priority_levels)]
        # Of each level two, the second of inputs past their timeout.
        self._ready = [LevelQueue() for _ in range(2 * batching.priority_levels)]
        self._deadlines = RankedHeap[WaitingInput](_has_deadline)
        self._waiting_at = [0] * batching.priority_levels
        self._turns = [FairTurns() for _ in range(batching.priority_levels)]
        self.num_waiting = 0

    def waiting_at(self, level: int) -> int:
        return self._waiting_at[level - 1]

    def waiting_of(self, flow: str) -> int:
        return sum(turns.num_members(flow) for turns in self._turns)

    def add(self, waiting: WaitingInput) -> None:
        index = waiting.level - 1
        waiting.start = self._turns[index].add(waiting.flow, waiting.num_tokens)
        gathers = self._batching.max_queue_delay_microseconds > 0
        (self._gathering[index] if gathers else self._ready[2 * index]).add(waiting)
        self._waiting_at[index] += 1
        self.num_waiting += 1
        if waiting.deadline_us is not None:
            self._deadlines.push(waiting.deadline_us, waiting.number, waiting)

    def remove(self, waiting: WaitingInput, *, is_computed: bool = True) -> None:
        """Take out an input. What was not computed is not counted as its flow's."""
        assert waiting.queue is not None, f"input {waiting.number} does not wait"
        waiting.queue.remove(waiting)
        unserved = 0 if is_computed else waiting.num_tokens
        self._turns[waiting.level - 1].remove(waiting.flow, unserved=unserved)
        self._waiting_at[waiting.level - 1] -= 1
        self.num_waiting -= 1

    def expire(self, now_us: int) -> list[WaitingInput]:
        """Apply the queue policies: remove and return what is rejected, put back what is delayed."""
        rejected = []
        while (first := self._deadlines.first()) is not None and first[0] < now_us:
            waiting = first[1]
            waiting.deadline_us = None
            policy = self._batching.policy_of(waiting.level)
            if policy.timeout_action == "REJECT" and waiting.is_rejectable:
                self.remove(waiting, is_computed=False)
                rejected.append(waiting)
            else:
                self._move(waiting, self._ready[2 * waiting.level - 1])
        return rejected

    def wait_us(self, now_us: int) -> int | None:
        """How long to wait for more inputs; 0: a pass can start; None: nothing waits."""
        self._release(now_us)
        if any(self._ready):
            return 0
        if not any(self._gathering):
            return None
        wait_us = self._oldest_us() + self._batching.max_queue_delay_microseconds - now_us
        first = self._deadlines.first()
        return wait_us if first is None else max(1, min(wait_us, first[0] + 1 - now_us))

    def plan(self, now_us: int, num_tokens_max: int | None = None) -> list[WaitingInput]:
        """The inputs of the next pass; none while they gather. They stay in the queue.

        `num_tokens_max`: of this pass, where that is less than the budget of all.
        """
        limits = self._limits
        if num_tokens_max is not None:
            budget = min(limits.max_num_batched_tokens, num_tokens_max)
            limits = replace(limits, max_num_batched_tokens=budget)
        self._release(now_us)
        queue = next((each for each in self._ready if each), None)
        if queue is None:
            return []
        self._turns[queue.first.level - 1].took(queue.first.start)
        choose = self._nearest_in_length if self._is_by_length else self._in_order
        chosen = choose(limits)
        size = self._preferred_size(len(chosen))
        return chosen if size in (None, len(chosen)) else choose(replace(limits, max_batch_size=size))

    def check_integrity(self) -> None:
        """Assert that the queues hold what was counted, at the right levels."""
        counted = [0] * self._batching.priority_levels
        for queue in (*self._gathering, *self._ready):
            queue.check_integrity()
        for index, queue in enumerate(self._gathering):
            assert all(each.level == index + 1 for each in queue.by_arrival.values()), "a wrong level gathers"
            assert list(queue.by_arrival) == sorted(queue.by_arrival), "arrivals out of order"
            counted[index] += len(queue)
        for index, queue in enumerate(self._ready):
            assert all(each.level == index // 2 + 1 for each in queue.by_arrival.values()), "a wrong level"
            counted[index // 2] += len(queue)
        by_turns = [turns.num_members_in_all for turns in self._turns]
        assert by_turns == self._waiting_at, f"{by_turns} have turns, {self._waiting_at} counted"
        assert counted == self._waiting_at, f"{self._waiting_at} counted, {counted} wait"
        assert sum(counted) == self.num_waiting, f"{self.num_waiting} counted, {counted} wait"

    # -- when a batch is complete

    def _release(self, now_us: int) -> None:
        while any(self._gathering):
            batch = self._complete_batch(now_us)
            if not batch:
                return
            for waiting in batch:
                self._move(waiting, self._ready[2 * (waiting.level - 1)])

    def _complete_batch(self, now_us: int) -> list[WaitingInput]:
        """The first batch, if it waits for no others; else none."""
        batch: list[WaitingInput] = []
        num_tokens, longest, is_full = 0, 0, False
        for waiting in self._in_turn(self._gathering):
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
        return min(queue.oldest.arrived_us for queue in self._gathering if queue)

    # -- whose turn it is

    def _nearest_in_length(self, limits: PassLimits) -> list[WaitingInput]:
        """The first of the ready, then those nearest in length: of a level when those before are all in."""
        chosen: list[WaitingInput] = []
        window: Window | None = None
        for queue in self._ready:
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
        for waiting in self._in_turn(self._ready):
            longest = max(longest, waiting.num_tokens)
            if chosen and not limits.allow(len(chosen) + 1, longest, longest):
                break
            chosen.append(waiting)
        return chosen

    @staticmethod
    def _in_turn(queues: list[LevelQueue]) -> Iterator[WaitingInput]:
        return (waiting for queue in queues for waiting in queue.in_turn)

    @staticmethod
    def _move(waiting: WaitingInput, to: LevelQueue) -> None:
        assert waiting.queue is not None, f"input {waiting.number} does not wait"
        waiting.queue.remove(waiting)
        to.add(waiting)


def _has_deadline(waiting: WaitingInput) -> bool:
    """Whether it waits, and its deadline is to come."""
    return waiting.queue is not None and waiting.deadline_us is not None
