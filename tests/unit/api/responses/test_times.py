"""When a job may be done."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from api.responses.times import eta_at
from nightshift.jobs import (
    Counts,
    Face,
    Job,
    JobKind,
    JobSpec,
    JobState,
    Usage,
)
from nightshift.jobs.priorities import PriorityClass

START = datetime(2026, 11, 20, 20, tzinfo=UTC)
RUNNING = Job(
    id="job_a",
    tenant_id="default",
    kind=JobKind.BULK,
    face=Face.NATIVE,
    state=JobState.RUNNING,
    priority=PriorityClass.STANDARD,
    model="m",
    spec=JobSpec(endpoint="/v1/chat/completions", completion_window_s=3600),
    counts=Counts(100, 20, 5),
    usage=Usage(),
    created_at=START,
    deadline_at=START + timedelta(hours=1),
    started_at=START,
)


def test_a_job_that_has_done_a_quarter_takes_three_times_as_long_again():
    assert eta_at(RUNNING, START + timedelta(minutes=10)) == START + timedelta(minutes=40)


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
    assert eta_at(unknown, START + timedelta(minutes=10)) is None


def test_an_estimate_of_the_rows_is_good_enough():
    estimated = replace(RUNNING, counts=Counts(None, 20, 5), rows_estimated=100, planned_at=START)

    assert eta_at(estimated, START + timedelta(minutes=10)) == START + timedelta(minutes=40)


def test_while_the_input_is_being_cut_the_end_is_unknown():
    begun = replace(RUNNING, counts=Counts(None, 20, 5), rows_estimated=100, planned_at=None)

    assert eta_at(begun, START + timedelta(minutes=10)) is None
