"""How long it is worth staying away."""

import math

import pytest

from nightshift.lifecycle.admission import RETRY_AFTER_MAX_S, estimated_drain_s, per_second


@pytest.mark.parametrize(
    ("waiting", "per_second", "seconds"),
    [
        (100, 10.0, 10),
        (101, 10.0, 11),  # whole seconds, upwards
        (1, 1000.0, 1),  # not at once
        (0, 10.0, 1),
        (10**9, 1.0, RETRY_AFTER_MAX_S),  # no estimate goes beyond a minute
        (100, 0.0, RETRY_AFTER_MAX_S),  # nothing moves
        (100, math.inf, 1),
    ],
)
def test_a_queue_drains_in_its_length_at_its_pace(waiting: int, per_second: float, seconds: int) -> None:
    assert estimated_drain_s(waiting, per_second) == seconds


@pytest.mark.parametrize(
    ("taken", "seconds", "wait_s"),
    [
        (500, 8, 8),  # as long as its oldest entry has waited
        (500, 0, 1),  # it has just filled
        (0, 30, RETRY_AFTER_MAX_S),  # a job that has not begun gives no hope within the minute
    ],
)
def test_a_full_queue_is_waited_for_at_its_rate(taken: int, seconds: float, wait_s: int) -> None:
    assert estimated_drain_s(500, per_second(taken, seconds=seconds)) == wait_s
