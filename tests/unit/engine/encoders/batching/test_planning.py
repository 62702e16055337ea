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


TENS = [10] * 15


@pytest.mark.parametrize(
    ("budget", "config", "waiting", "passes"),
    [
        pytest.param(
            100,
            {},
            {"background": [50] * 4, "standard": [49] * 4, "interactive": [48, 48]},
            [[48, 48], [49, 49], [49, 49], [50, 50]],
            id="the most urgent class first, however late it comes",
        ),
        pytest.param(
            200,
            {},
            {"background": [40, 100, 50], "interactive": [45]},
            [[45, 40, 50], [100]],
            id="what is left of its pass goes to another class where it is alike",
        ),
        pytest.param(
            400,
            {},
            {"background": [50], "interactive": [50, 100]},
            [[50], [100], [50]],
            id="and to none while it has inputs itself",
        ),
        pytest.param(
            400,
            {},
            {"standard": [90, 5, 80, 40, 6, 100]},
            [[80, 90, 100], [5, 6], [40]],
            id="inputs of like length, from the oldest on",
        ),
        pytest.param(
            1_000,
            {"length_buckets": (50, 85)},
            {"standard": [90, 5, 80, 40, 50, 100]},
            [[90, 100], [5, 40, 50], [80]],
            id="inputs of one bucket",
        ),
        *(
            pytest.param(
                10_000,
                {"max_batch_size": 20, "preferred_batch_size": (4, 8), "length_buckets": buckets},
                {"standard": TENS},
                [TENS[:8], TENS[:4], TENS[:3]],
                id=f"the largest preferred size there is, with buckets {buckets}",
            )
            for buckets in (None, ())
        ),
    ],
)
def test_inputs_are_put_into_passes(
    budget: int, config: dict[str, Any], waiting: dict[Any, Any], passes: Any
) -> None:
    batcher = batcher_of(budget, **config)
    for priority, lengths in waiting.items():
        waiting_inputs(batcher, *lengths, priority=priority)

    assert [take(batcher) for _ in passes] == passes


@pytest.mark.parametrize("seed", mostly_exhaustive(range(20), default=range(5)))
def test_length_buckets_cover_every_input_once_within_budget_and_with_little_padding(seed):
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
