"""Properties of the batching policy for any configuration and any arrivals, checked by hypothesis."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift_engine.core.request import PriorityClass
from nightshift_engine.encoders.batcher import CLASSES, EncoderBatcher, WaitingInput
from nightshift_engine.encoders.config import DynamicBatching, EncoderConfig

TOKENS_MAX = 60
"""Tokens of the longest input."""


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    batch = draw(st.integers(0, 12))
    sizes = draw(st.lists(st.integers(1, batch), max_size=3)) if batch else []
    return EncoderConfig(
        max_batch_size=batch,
        length_buckets=draw(st.sampled_from([None, (), (10, 30)])),
        dynamic_batching=DynamicBatching(
            max_queue_delay_microseconds=draw(st.sampled_from([0, 0, 40, 400])),
            preferred_batch_size=tuple(sizes),
        ),
    )


@dataclass(frozen=True)
class Arrival:
    after_us: int
    num_tokens: int
    priority: PriorityClass


arrivals = st.builds(
    Arrival, st.sampled_from([0, 0, 1, 20, 100]), st.integers(1, TOKENS_MAX), st.sampled_from(CLASSES)
)


@dataclass
class Walk:
    """A device that takes `pass_us` for each pass and asks the batcher whenever it is free."""

    config: EncoderConfig
    budget: int
    pass_us: int
    now_us: int = 0
    passes: list[tuple[int, list[WaitingInput]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batcher = EncoderBatcher(self.config, self.budget)

    def run(self, coming: list[Arrival]) -> None:
        left = self._inputs(coming)
        upcoming = next(left, None)
        while upcoming is not None or self.batcher.num_waiting:
            while upcoming is not None and upcoming.arrived_us <= self.now_us:
                self.batcher.add(upcoming)
                upcoming = next(left, None)
            self.batcher.check_integrity()
            wait_us = self.batcher.wait_us(self.now_us)
            if wait_us == 0:
                self._pass()
                continue
            assert (wait_us is None) == (self.batcher.num_waiting == 0)
            times = [] if wait_us is None else [self.now_us + wait_us]
            if upcoming is not None:
                times.append(upcoming.arrived_us)
            self._check_wait(wait_us)
            self.now_us = min(times) if times else self.now_us

    def _inputs(self, coming: list[Arrival]) -> Iterator[WaitingInput]:
        at_us = 0
        for number, arrival in enumerate(coming):
            at_us += arrival.after_us
            tokens = [0] * arrival.num_tokens
            yield WaitingInput("r", number, tokens, arrival.priority, number, at_us)

    def _check_wait(self, wait_us: int | None) -> None:
        """An idle device waits only as configured, and for no longer than the oldest's delay."""
        if wait_us is not None:
            assert 0 < wait_us <= self.config.dynamic_batching.max_queue_delay_microseconds

    def _pass(self) -> None:
        inputs = self.batcher.plan(self.now_us)
        assert inputs, "a pass can start, and has inputs"
        for waiting in inputs:
            self.batcher.remove(waiting)
        self.passes.append((self.now_us, inputs))
        self.now_us += self.pass_us


walks = st.builds(Walk, configs(), st.integers(TOKENS_MAX, 300), st.sampled_from([0, 10, 150]))
comings = st.lists(arrivals, max_size=60)


@settings(max_examples=300, deadline=None)
@given(walks, comings)
def test_each_input_is_taken_once_within_every_limit_and_the_oldest_of_the_most_urgent_class_first(
    walk, coming
):
    """The oldest input of a class goes at each pass of the class, so that none is overtaken for ever."""
    walk.run(coming)

    check_limits(walk, len(coming))
    check_order(walk)
    if walk.config.length_buckets == ():
        for priority in CLASSES:
            numbers = [
                input.number for _, inputs in walk.passes for input in inputs if input.priority == priority
            ]
            assert numbers == sorted(numbers)


def check_limits(walk: Walk, num_inputs: int) -> None:
    taken = [waiting.number for _, inputs in walk.passes for waiting in inputs]
    assert sorted(taken) == list(range(num_inputs))
    for _, inputs in walk.passes:
        assert len(inputs) <= max(1, walk.config.max_batch_size)
        assert len(inputs) == 1 or len(inputs) * max(input.num_tokens for input in inputs) <= walk.budget


def check_order(walk: Walk) -> None:
    delay_us = walk.config.dynamic_batching.max_queue_delay_microseconds
    everyone = [waiting for _, inputs in walk.passes for waiting in inputs]
    started = {waiting.number: at_us for at_us, inputs in walk.passes for waiting in inputs}
    place = {waiting.number: index for index, (_, ins) in enumerate(walk.passes) for waiting in ins}

    for index, (at_us, inputs) in enumerate(walk.passes):
        numbers = {waiting.number for waiting in inputs}
        due = [
            waiting
            for waiting in everyone
            if waiting.arrived_us + delay_us <= at_us and place[waiting.number] >= index
        ]
        if due:
            first = min(due, key=lambda waiting: (CLASSES.index(waiting.priority), waiting.number))
            urgent = min(CLASSES.index(waiting.priority) for waiting in inputs)
            assert urgent <= CLASSES.index(first.priority)
            if urgent == CLASSES.index(first.priority):
                assert first.number in numbers
    assert all(started[waiting.number] >= waiting.arrived_us for waiting in everyone)
