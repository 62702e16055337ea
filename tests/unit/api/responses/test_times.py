"""When a job may be done."""

from dataclasses import replace
from datetime import timedelta

import pytest

from api.responses.times import eta_at
from nightshift.jobs import Counts, JobState
from tests.helpers.fakes import STARTS_AT, a_job

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
