"""Who is encoded when: which inputs a step takes, in which passes, and how long it waits for more."""

import threading
from itertools import count
from random import Random

import pytest

from tests.unit.workers.engine.encoders.formula import TEN_MINUTES_US, engine_of, request
from workers.engine.encoders.batcher import EncoderBatcher, WaitingInput
from workers.engine.encoders.length_buckets import LENGTH_RATIO_MAX, SHORT_INPUT_TOKENS, length_buckets
from workers.engine.encoders.request import EncodeOutput
from workers.engine.request import PRIORITY_RANKS

# --- what a step takes ---


ARRIVALS = count()


def waiting_inputs(batcher: EncoderBatcher, *lengths: int, priority: str = "standard") -> None:
    for length in lengths:
        batcher.add(
            WaitingInput("r", 0, [0] * length, PRIORITY_RANKS[priority], next(ARRIVALS), arrived_us=0)
        )


def planned_lengths(batcher: EncoderBatcher) -> list[list[int]]:
    return [[waiting.num_tokens for waiting in inputs] for inputs in batcher.plan()]


def take(batcher: EncoderBatcher) -> list[WaitingInput]:
    taken = [waiting for inputs in batcher.plan() for waiting in inputs]
    for waiting in taken:
        batcher.remove(waiting)
    batcher.check_integrity()
    return taken


def test_interactive_inputs_go_first_however_late_they_come():
    batcher = EncoderBatcher(max_num_batched_tokens=100)
    waiting_inputs(batcher, *[50] * 10, priority="background")
    waiting_inputs(batcher, *[49] * 4, priority="standard")
    waiting_inputs(batcher, 48, 48, priority="interactive")

    steps = [[waiting.num_tokens for waiting in take(batcher)] for _ in range(4)]

    assert steps == [[48, 48], [49, 49], [49, 49], [50, 50]]


def test_what_an_urgent_class_leaves_of_the_budget_goes_to_the_next():
    batcher = EncoderBatcher(max_num_batched_tokens=100)
    waiting_inputs(batcher, *[50] * 10, priority="background")
    waiting_inputs(batcher, 20, priority="interactive")

    assert planned_lengths(batcher) == [[20], [50]]


def test_a_pass_holds_inputs_of_like_length_and_starts_from_the_oldest():
    batcher = EncoderBatcher(max_num_batched_tokens=400)
    waiting_inputs(batcher, 90, 5, 80, 40, 6, 100)

    assert planned_lengths(batcher) == [[80, 90, 100], [5, 6], [40]]


def test_the_oldest_input_is_in_the_next_step_whatever_keeps_arriving():
    batcher = EncoderBatcher(max_num_batched_tokens=120)
    waiting_inputs(batcher, *[10] * 12, 100)
    taken = take(batcher)
    waiting_inputs(batcher, *[10] * 50)

    assert max(waiting.num_tokens for waiting in taken) == 10
    assert planned_lengths(batcher)[0] == [100]


@pytest.mark.parametrize("seed", range(20))
def test_no_step_exceeds_its_budget_and_every_input_is_taken_once(seed):
    print(f"seed {seed}")
    random = Random(seed)
    budget = random.choice([64, 200, 1_000])
    batcher = EncoderBatcher(max_num_batched_tokens=budget)
    for priority in PRIORITY_RANKS:
        waiting_inputs(batcher, *[random.randint(1, 64) for _ in range(100)], priority=priority)
    numbers: list[int] = []
    while batcher.num_waiting:
        assert sum(len(lengths) * max(lengths) for lengths in planned_lengths(batcher)) <= budget
        numbers += [waiting.number for waiting in take(batcher)]

    assert len(numbers) == len(set(numbers)) == 300


@pytest.mark.parametrize("seed", range(20))
def test_length_buckets_cover_every_input_once_within_budget_and_with_little_padding(seed):
    print(f"seed {seed}")
    random = Random(seed)
    inputs = [[0] * int(random.paretovariate(0.7)) for _ in range(200)]

    buckets = length_buckets(inputs, max_num_batched_tokens=1_000)

    assert sorted(index for bucket in buckets for index in bucket) == list(range(200))
    for bucket in buckets:
        lengths = [len(inputs[index]) for index in bucket]
        assert len(bucket) == 1 or len(bucket) * max(lengths) <= 1_000
        assert max(lengths) <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * min(lengths))


# --- when a step starts ---


def test_a_small_batch_waits_for_the_delay_counted_from_its_oldest_input():
    batcher = EncoderBatcher(max_num_batched_tokens=100, preferred_batch_size=3, max_queue_delay_us=500)
    assert batcher.delay_us(now_us=1_000) is None

    batcher.add(WaitingInput("r", 0, [0], 1, number=0, arrived_us=1_000))
    batcher.add(WaitingInput("r", 1, [0], 0, number=1, arrived_us=1_400))

    assert batcher.delay_us(now_us=1_400) == 100
    assert batcher.delay_us(now_us=1_600) == 0


def test_a_batch_of_preferred_size_or_a_full_step_does_not_wait():
    limits = {"max_num_batched_tokens": 100, "preferred_batch_size": 3, "max_queue_delay_us": 500}
    preferred, full = EncoderBatcher(**limits), EncoderBatcher(**limits)

    waiting_inputs(preferred, 1, 1, 1)
    waiting_inputs(full, 60, 60)

    assert preferred.delay_us(now_us=0) == full.delay_us(now_us=0) == 0


def test_a_waiting_step_is_released_by_the_input_that_completes_its_batch():
    engine = engine_of(preferred_batch_size=2, max_queue_delay_us=TEN_MINUTES_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.add(request("b", 3))
    step.join()

    assert {output.id for output in outputs} == {"a", "b"}


def test_a_waiting_step_is_released_when_its_only_request_is_aborted():
    engine = engine_of(preferred_batch_size=2, max_queue_delay_us=TEN_MINUTES_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.abort("a")
    step.join()

    assert outputs == []
