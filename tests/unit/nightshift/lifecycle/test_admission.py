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


def test_a_full_queue_is_waited_for_as_long_as_its_oldest_entry_has() -> None:
    assert estimated_drain_s(500, per_second(500, seconds=8)) == 8


def test_a_queue_that_has_just_filled_has_no_known_rate() -> None:
    assert estimated_drain_s(500, per_second(500, seconds=0)) == 1


def test_a_job_that_has_not_begun_gives_no_hope_within_the_minute() -> None:
    assert estimated_drain_s(500, per_second(0, seconds=30)) == RETRY_AFTER_MAX_S
