"""Triton's dynamic batcher, walked through with a clock of the test's own."""

import threading
from collections.abc import Iterator

import pytest

from nightshift_engine.encoders.batcher import EncoderBatcher, WaitingInput
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.request import EncodeOutput
from tests.unit.engine.encoders.formula import TEN_SECONDS_US, FormulaEncoder, batching, engine_of, request

# --- the classic configuration ---


class Server:
    """A device that is free again as soon as the test looks, behind the classic configuration."""

    def __init__(self, length_buckets: tuple[int, ...] | None = ()) -> None:
        config = batching(
            max_batch_size=64,
            max_queue_delay_microseconds=5_000,
            preferred_batch_size=(16, 32, 64),
            length_buckets=length_buckets,
        )
        self.batcher = EncoderBatcher(config, max_num_batched_tokens=100_000)
        self.numbers = iter(range(1_000_000))

    def arrive(self, count: int, at_us: int) -> None:
        for _ in range(count):
            self.batcher.add(WaitingInput("r", 0, [0] * 10, "standard", next(self.numbers), at_us))

    def look(self, at_us: int) -> list[int]:
        """The sizes of the batches that start now, one after the other."""
        return list(self._batches(at_us))

    def _batches(self, at_us: int) -> Iterator[int]:
        while self.batcher.wait_us(at_us) == 0:
            batch = self.batcher.plan(at_us)
            for waiting in batch:
                self.batcher.remove(waiting)
            self.batcher.check_integrity()
            yield len(batch)


@pytest.mark.parametrize("length_buckets", [(), None])
def test_the_classic_configuration_64_at_most_5_ms_preferably_16_32_or_64(length_buckets):
    server = Server(length_buckets)
    assert server.batcher.wait_us(0) is None

    server.arrive(3, at_us=1_000)  # too few: they wait for others
    assert server.look(1_000) == []
    assert server.batcher.wait_us(1_000) == 5_000
    assert server.batcher.wait_us(4_000) == 2_000

    server.arrive(12, at_us=4_000)  # 15: one too few
    assert server.look(4_000) == []
    server.arrive(1, at_us=4_500)  # 16: a preferred size, at once
    assert server.look(4_500) == [16]

    server.arrive(5, at_us=10_000)  # no preferred size within 5 ms of the first
    server.arrive(5, at_us=14_999)
    assert server.look(14_999) == []
    assert server.look(15_000) == [10]

    server.arrive(40, at_us=20_000)  # 32 at once; the other 8 wait
    assert server.look(20_000) == [32]
    assert server.batcher.wait_us(20_000) == 5_000
    server.arrive(10, at_us=22_000)  # 18 now: 16, and 2 wait for their own 5 ms
    assert server.look(22_000) == [16]
    assert server.look(26_999) == []
    assert server.look(27_000) == [2]

    server.arrive(150, at_us=30_000)  # no batch beyond 64
    assert server.look(30_000) == [64, 64, 16]
    assert server.look(35_000) == [6]
    assert server.batcher.num_waiting == 0


def test_a_batch_that_the_token_budget_ends_does_not_wait():
    config = batching(max_batch_size=64, max_queue_delay_microseconds=5_000)
    batcher = EncoderBatcher(config, max_num_batched_tokens=100)
    batcher.add(WaitingInput("r", 0, [0] * 60, "standard", 0, 0))
    assert batcher.wait_us(0) == 5_000

    batcher.add(WaitingInput("r", 0, [0] * 60, "standard", 1, 0))

    assert [waiting.number for waiting in batcher.plan(0)] == [0]


def test_an_urgent_batch_goes_first_and_the_others_not_later_than_their_delay():
    config = batching(max_batch_size=2, max_queue_delay_microseconds=5_000)
    batcher = EncoderBatcher(config, max_num_batched_tokens=100)
    batcher.add(WaitingInput("r", 0, [0] * 10, "background", 0, 0))
    batcher.add(WaitingInput("r", 0, [0] * 10, "interactive", 1, 4_000))
    batcher.add(WaitingInput("r", 0, [0] * 10, "interactive", 2, 4_000))

    first = batcher.plan(4_000)
    for waiting in first:
        batcher.remove(waiting)

    assert [waiting.number for waiting in first] == [1, 2]
    assert batcher.wait_us(4_000) == 1_000
    assert [waiting.number for waiting in batcher.plan(5_000)] == [0]


@pytest.mark.parametrize(
    ("release", "finished"),
    [
        (lambda engine: engine.add(request("b", 3)), {"a", "b"}),  # it completes the batch
        (lambda engine: engine.abort("a"), set()),
    ],
    ids=["an input", "an abort"],
)
def test_a_waiting_step_is_released(release, finished):
    engine = engine_of(preferred_batch_size=(2,), max_queue_delay_microseconds=TEN_SECONDS_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    release(engine)
    step.join()

    assert {output.id for output in outputs} == finished


def test_the_wait_for_a_batch_ends_before_the_step_that_starts_it():
    """A worker's other models have the device meanwhile."""
    config = batching(max_batch_size=2, max_queue_delay_microseconds=20_000)
    engine = EncoderEngine(FormulaEncoder(), config)  # by the real clock
    engine.wait_for_batch()  # nothing is there to wait for
    engine.add(request("one", 3))
    engine.add(request("two", 3))
    engine.wait_for_batch()  # the batch is full, or a busy machine has let the time pass
    assert engine.step()
