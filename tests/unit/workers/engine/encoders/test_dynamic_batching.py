"""Triton's dynamic batcher, walked through with a clock of the test's own."""

import threading
from collections.abc import Iterator

import pytest

from tests.unit.workers.engine.encoders.formula import (
    TEN_SECONDS_US,
    FakeClock,
    FormulaEncoder,
    assert_answers,
    batching,
    engine_of,
    request,
    run_to_end,
)
from workers.engine.encoders.batcher import EncoderBatcher
from workers.engine.encoders.config import InvalidBatching, QueuePolicy
from workers.engine.encoders.engine import EncoderEngine
from workers.engine.encoders.request import EncodeOutput
from workers.engine.encoders.waiting import WaitingInput
from workers.engine.ranked_heap import DEPARTED_MAX

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
            self.batcher.add(WaitingInput("r", 0, [0] * 10, 2, next(self.numbers), at_us))

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
    batcher.add(WaitingInput("r", 0, [0] * 60, 2, 0, 0))
    assert batcher.wait_us(0) == 5_000

    batcher.add(WaitingInput("r", 0, [0] * 60, 2, 1, 0))

    assert [waiting.number for waiting in batcher.plan(0)] == [0]


def test_an_urgent_batch_goes_first_and_the_others_not_later_than_their_delay():
    config = batching(max_batch_size=2, max_queue_delay_microseconds=5_000)
    batcher = EncoderBatcher(config, max_num_batched_tokens=100)
    batcher.add(WaitingInput("r", 0, [0] * 10, 3, 0, 0))
    batcher.add(WaitingInput("r", 0, [0] * 10, 1, 1, 4_000))
    batcher.add(WaitingInput("r", 0, [0] * 10, 1, 2, 4_000))

    first = batcher.plan(4_000)
    for waiting in first:
        batcher.remove(waiting)

    assert [waiting.number for waiting in first] == [1, 2]
    assert batcher.wait_us(4_000) == 1_000
    assert [waiting.number for waiting in batcher.plan(5_000)] == [0]


def test_a_waiting_step_is_released_by_the_input_that_completes_its_batch():
    engine = engine_of(preferred_batch_size=(2,), max_queue_delay_microseconds=TEN_SECONDS_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.add(request("b", 3))
    step.join()

    assert {output.id for output in outputs} == {"a", "b"}


def test_a_waiting_step_is_released_when_its_only_request_is_aborted():
    engine = engine_of(preferred_batch_size=(2,), max_queue_delay_microseconds=TEN_SECONDS_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.abort("a")
    step.join()

    assert outputs == []


# --- priority levels ---


@pytest.mark.parametrize(
    ("fields", "levels"),
    [
        ({}, [1, 2, 3]),
        ({"priority_levels": 1, "default_priority_level": 1}, [1, 1, 1]),
        ({"priority_levels": 2, "default_priority_level": 2}, [1, 2, 2]),
        ({"priority_levels": 5, "default_priority_level": 3}, [1, 3, 5]),
    ],
)
def test_a_class_is_the_first_the_default_or_the_last_level(fields, levels):
    dynamic = batching(**fields).dynamic_batching

    assert [dynamic.level_of(each) for each in ("interactive", "standard", "background")] == levels
    assert dynamic.level_of(0) == dynamic.default_priority_level


def test_a_level_that_there_is_not_is_refused():
    with pytest.raises(InvalidBatching, match="priority must be 0 to 3, got 4"):
        engine_of().add(request("a", 3, priority=4))


# --- timeouts ---

REJECTING = QueuePolicy(default_timeout_microseconds=1_000)
DELAYING = QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=1_000)


def test_a_request_past_its_timeout_is_rejected_whole_and_says_how_long_it_waited():
    clock = FakeClock()
    engine = engine_of(clock_us=clock, default_queue_policy=REJECTING)
    engine.add(request("late", 3, 4))
    clock.now_us = 1_000
    engine.add(request("new", 5))

    clock.now_us = 1_001
    outputs = run_to_end(engine)

    assert [(output.id, output.timeout_us) for output in outputs] == [("late", 1_000), ("new", None)]
    assert outputs[0].embeddings == []
    assert engine.stats().timeouts == 1


def test_at_its_timeout_a_request_is_still_taken():
    clock = FakeClock()
    engine = engine_of(clock_us=clock, default_queue_policy=REJECTING)
    engine.add(request("a", 3))

    clock.now_us = 1_000

    assert [output.timeout_us for output in engine.step()] == [None]


def test_a_delayed_input_waits_behind_those_of_its_level_and_before_those_of_the_next():
    clock = FakeClock()
    engine = engine_of(clock_us=clock, max_batch_size=1, default_queue_policy=DELAYING)
    late, bulk, new = request("late", 3), request("bulk", 3, priority="background"), request("new", 3)
    engine.add(late)
    clock.now_us = 1_001
    engine.add(bulk)
    engine.add(new)

    outputs = run_to_end(engine)

    assert [output.id for output in outputs] == ["new", "late", "bulk"]
    assert_answers(outputs[1], late)


def test_a_level_has_the_timeout_of_its_own_policy():
    clock = FakeClock()
    engine = engine_of(clock_us=clock, priority_queue_policy={1: REJECTING})
    engine.add(request("bulk", 3, priority="background"))
    engine.add(request("chat", 3, priority="interactive"))
    clock.now_us = 1_000_000

    assert {output.id: output.timeout_us for output in run_to_end(engine)} == {"chat": 1_000, "bulk": None}


def test_a_request_may_shorten_its_timeout_where_it_is_allowed_and_never_lengthen_it():
    allowing = QueuePolicy(default_timeout_microseconds=1_000, allow_timeout_override=True)

    assert [allowing.timeout_us(asked) for asked in (0, 400, 4_000)] == [1_000, 400, 1_000]
    assert REJECTING.timeout_us(400) == 1_000
    assert QueuePolicy(allow_timeout_override=True).timeout_us(400) == 0


def test_what_may_not_be_rejected_is_delayed_instead():
    clock = FakeClock()
    engine = engine_of(clock_us=clock, default_queue_policy=REJECTING)
    engine.add(request("row", 3, is_rejectable=False))
    clock.now_us = 1_001

    assert [output.timeout_us for output in run_to_end(engine)] == [None]


def test_a_step_that_waits_for_others_wakes_for_a_timeout():
    config = batching(max_queue_delay_microseconds=5_000, default_queue_policy=REJECTING)
    batcher = EncoderBatcher(config, max_num_batched_tokens=100)

    batcher.add(WaitingInput("r", 0, [0], 2, 0, 0, deadline_us=1_000))

    assert batcher.wait_us(0) == 1_001
    assert [waiting.number for waiting in batcher.expire(1_001)] == [0]
    assert batcher.wait_us(1_001) is None


def test_the_wait_for_a_batch_ends_before_the_step_that_starts_it_or_reports_a_timeout():
    """So that a worker's other models have the device meanwhile."""
    config = batching(
        max_batch_size=2,
        max_queue_delay_microseconds=20_000,
        default_queue_policy=QueuePolicy(default_timeout_microseconds=5_000),
    )
    engine = EncoderEngine(FormulaEncoder(), config)  # by the real clock
    engine.add(request("late", 3))
    engine.wait_for_batch()  # until it times out
    assert [(output.id, output.timeout_us) for output in engine.step()] == [("late", 5_000)]

    engine.wait_for_batch()  # nothing is there to wait for
    engine.add(request("one", 3))
    engine.add(request("two", 3))
    engine.wait_for_batch()  # the batch is full, or a busy machine has let the time pass
    assert engine.step()


def test_deadlines_of_what_has_left_are_forgotten():
    batcher = EncoderBatcher(batching(default_queue_policy=REJECTING), max_num_batched_tokens=100)

    for number in range(5 * DEPARTED_MAX):
        waiting = WaitingInput("r", 0, [0], 2, number, 0, deadline_us=1_000)
        batcher.add(waiting)
        batcher.remove(waiting)

    assert len(batcher._deadlines) <= DEPARTED_MAX + 2


# --- the order of answers ---


def test_answers_leave_in_the_order_of_requests_where_that_is_asked_for():
    engine = engine_of(FormulaEncoder(), max_batch_size=1, preserve_ordering=True)
    engine.add(request("first", 50, priority="background"))
    engine.add(request("second", 3, priority="interactive"))
    engine.add(request("third", 4))

    steps = [[output.id for output in engine.step()] for _ in range(3)]

    assert steps == [[], [], ["first", "second", "third"]]
    assert not engine.has_work


def test_an_aborted_request_holds_no_answer_back():
    engine = engine_of(max_batch_size=1, preserve_ordering=True)
    engine.add(request("first", 50, priority="background"))
    engine.add(request("second", 3, priority="interactive"))
    assert engine.step() == []

    assert engine.abort("first") is True

    assert engine.has_work
    assert [output.id for output in engine.step()] == ["second"]
    assert not engine.has_work


def test_an_answer_held_back_can_be_aborted():
    engine = engine_of(max_batch_size=1, preserve_ordering=True)
    engine.add(request("first", 50, priority="background"))
    engine.add(request("second", 3, priority="interactive"))
    engine.step()

    assert engine.abort("second") is True

    assert [output.id for output in run_to_end(engine)] == ["first"]


def test_a_request_that_timed_out_answers_in_its_turn():
    clock = FakeClock()
    engine = engine_of(
        clock_us=clock, max_batch_size=1, preserve_ordering=True, priority_queue_policy={1: REJECTING}
    )
    engine.add(request("first", 50, priority="background"))
    engine.add(request("late", 3, priority="interactive"))
    clock.now_us = 1_001

    assert engine.step() == []
    assert [(output.id, output.timeout_us) for output in engine.step()] == [("first", None), ("late", 1_000)]


def test_one_pass_may_be_made_shorter_than_the_budget_and_a_long_input_still_is_one():
    model = FormulaEncoder()
    engine = engine_of(model)
    engine.add(request("a", *([10] * 8), 90))

    engine.step(num_tokens_max=30)
    engine.step(num_tokens_max=30)
    assert [len(lengths) for lengths in model.passes] == [3, 3]
    run_to_end(engine)
    assert sorted(n for lengths in model.passes for n in lengths) == [10] * 8 + [90]
