"""When a job may be done."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from api.responses.times import eta_at
from nightshift.jobs import Counts, JobState
from tests.helpers.fakes import STARTS_AT, a_job, a_spec

RUNNING = a_job(state=JobState.RUNNING, counts=Counts(100, 20, 5), created_at=STARTS_AT, started_at=STARTS_AT)
LATER = STARTS_AT + timedelta(minutes=10)


def test_a_job_that_has_done_a_quarter_takes_three_times_as_long_again():
    assert eta_at(RUNNING, LATER) == STARTS_AT + timedelta(minutes=40)


@pytest.mark.parametrize(
    "unknown",
    [
        replace(RUNNING, state=JobState.QUEUED),
        replace(RUNNING, counts=Counts(None, 20, 5)),
        replace(RUNNING, counts=Counts(100, 1, 0)),
        replace(RUNNING, started_at=None),
    ],
)
def test_an_unknown_amount_has_no_eta(unknown):
    assert eta_at(unknown, LATER) is None


def test_an_estimate_of_the_rows_is_good_enough_once_the_input_is_cut():
    begun = replace(RUNNING, counts=Counts(None, 20, 5), rows_estimated=100, planned_at=None)
    assert eta_at(begun, LATER) is None

    assert eta_at(replace(begun, planned_at=STARTS_AT), LATER) == STARTS_AT + timedelta(minutes=40)


def test_of_a_job_with_a_window_only_its_hours_count() -> None:
    """It has run from 05:00 to 06:00 and from 01:00 to 02:00, and half of the rows are left."""
    started_at = datetime(2026, 2, 1, 5, tzinfo=UTC)
    night = replace(
        RUNNING, started_at=started_at, counts=Counts(200, 100, 0), spec=a_spec(window="01:00-06:00")
    )
    now = datetime(2026, 2, 2, 2, tzinfo=UTC)
    assert eta_at(night, now) == now + timedelta(hours=2)

    between = replace(night, paused_at=started_at, window_turns_at=datetime(2026, 2, 2, 1, tzinfo=UTC))
    assert eta_at(between, started_at + timedelta(hours=2)) == datetime(2026, 2, 2, 2, tzinfo=UTC)
    assert eta_at(replace(between, window_turns_at=None), now) is None, "a person has paused it"


def test_a_rate_that_says_nothing_is_no_estimate() -> None:
    slow = replace(RUNNING, counts=Counts(10**9, 8, 0))
    assert eta_at(slow, LATER + timedelta(days=300)) is None
