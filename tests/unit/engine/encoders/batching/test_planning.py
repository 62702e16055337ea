"""Which inputs share a forward pass."""

from itertools import count
from random import Random
from typing import Any

import pytest

from nightshift_engine.core.request import PriorityClass
from nightshift_engine.encoders.batcher import (
    LENGTH_RATIO_MAX,
    SHORT_INPUT_TOKENS,
    EncoderBatcher,
    WaitingInput,
    length_buckets,
)
from tests.unit.engine.encoders.formula import batching
from tests.unit.engine.tiny.cases import mostly_exhaustive

ARRIVALS = count()


def batcher_of(max_num_batched_tokens: int, **fields: Any) -> EncoderBatcher:
    return EncoderBatcher(batching(**fields), max_num_batched_tokens)


def waiting_inputs(batcher: EncoderBatcher, *lengths: int, priority: PriorityClass = "standard") -> None:
    for length in lengths:
        batcher.add(WaitingInput("r", 0, [0] * length, priority, next(ARRIVALS), arrived_us=0))


def take(batcher: EncoderBatcher) -> list[int]:
    """The lengths of the next pass."""
    taken = batcher.plan(now_us=0)
    for waiting in taken:
        batcher.remove(waiting)
    batcher.check_integrity()
    return [waiting.num_tokens for waiting in taken]


def test_interactive_inputs_go_first_however_late_they_come():
    batcher = batcher_of(100)
    waiting_inputs(batcher, *[50] * 4, priority="background")
    waiting_inputs(batcher, *[49] * 4, priority="standard")
    waiting_inputs(batcher, 48, 48, priority="interactive")

    assert [take(batcher) for _ in range(4)] == [[48, 48], [49, 49], [49, 49], [50, 50]]


def test_what_an_urgent_class_leaves_of_a_pass_goes_to_the_next_where_it_is_alike():
    batcher = batcher_of(200)
    waiting_inputs(batcher, 40, 100, 50, priority="background")
    waiting_inputs(batcher, 45, priority="interactive")

    assert [take(batcher) for _ in range(2)] == [[45, 40, 50], [100]]


def test_no_class_is_passed_over_while_it_has_other_inputs():
    batcher = batcher_of(400)
    waiting_inputs(batcher, 50, priority="background")
    waiting_inputs(batcher, 50, 100, priority="interactive")

    assert [take(batcher) for _ in range(3)] == [[50], [100], [50]]


def test_a_pass_holds_inputs_of_like_length_and_starts_from_the_oldest():
    batcher = batcher_of(400)
    waiting_inputs(batcher, 90, 5, 80, 40, 6, 100)

    assert [take(batcher) for _ in range(3)] == [[80, 90, 100], [5, 6], [40]]


def test_with_buckets_of_its_own_a_pass_stays_within_one():
    batcher = batcher_of(1_000, length_buckets=(50, 85))
    waiting_inputs(batcher, 90, 5, 80, 40, 50, 100)

    assert [take(batcher) for _ in range(3)] == [[90, 100], [5, 40, 50], [80]]


def test_without_buckets_inputs_go_in_the_order_of_their_arrival():
    batcher = batcher_of(400, length_buckets=())
    waiting_inputs(batcher, 90, 5, 80, 40, 6, 100)

    assert [take(batcher) for _ in range(2)] == [[90, 5, 80, 40], [6, 100]]


@pytest.mark.parametrize("buckets", [None, ()])
def test_a_pass_has_no_more_inputs_than_max_batch_size(buckets):
    batcher = batcher_of(1_000, max_batch_size=4, length_buckets=buckets)
    waiting_inputs(batcher, *[10] * 9)

    assert [len(take(batcher)) for _ in range(3)] == [4, 4, 1]


def test_a_model_that_takes_no_batches_gets_one_input_at_a_time():
    batcher = batcher_of(1_000, max_batch_size=0)
    waiting_inputs(batcher, 10, 10)

    assert [take(batcher) for _ in range(2)] == [[10], [10]]


@pytest.mark.parametrize("buckets", [None, ()])
def test_a_pass_has_the_largest_preferred_size_there_is(buckets):
    batcher = batcher_of(10_000, preferred_batch_size=(4, 8), max_batch_size=20, length_buckets=buckets)
    waiting_inputs(batcher, *[10] * 15)

    assert [len(take(batcher)) for _ in range(3)] == [8, 4, 3]


def test_the_oldest_input_is_in_the_next_pass_whatever_keeps_arriving():
    batcher = batcher_of(120)
    waiting_inputs(batcher, *[10] * 12, 100)
    taken = take(batcher)
    waiting_inputs(batcher, *[10] * 50)

    assert max(taken) == 10
    assert take(batcher) == [100]


@pytest.mark.parametrize("seed", mostly_exhaustive(range(20), default=range(5)))
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


@pytest.mark.parametrize("seed", mostly_exhaustive(range(3), default=[0]))
def test_with_a_backlog_at_most_8_percent_of_lognormal_lengths_is_padding(seed):
    print(f"seed {seed}")
    random = Random(seed)
    lengths = [min(512, max(8, round(90 * random.lognormvariate(0, 0.8)))) for _ in range(6_000)]
    batcher = batcher_of(1_024)
    waiting_inputs(batcher, *lengths[:1_000], priority="background")
    computed = padded = 0
    for start in range(1_000, len(lengths), 10):  # as many come as go, roughly
        waiting_inputs(batcher, *lengths[start : start + 10], priority="background")
        while batcher.num_waiting > 1_000:
            taken = take(batcher)
            computed += sum(taken)
            padded += len(taken) * max(taken) - sum(taken)

    assert padded / (computed + padded) <= 0.08
