"""A job's life: phases without gaps, moments in order, a curve through its checkpoints."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from api.page.views.timeline import SAMPLES, WIDTH, sampled, timeline
from nightshift.jobs import Counts, JobState
from nightshift.lifecycle.transitions import SHARD_LOST, SHARD_RESUMED
from nightshift.store.jobs.events import Event
from tests.helpers.fakes import a_job

T0 = datetime(2026, 11, 25, 2, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


JOB = a_job(
    state=JobState.SUCCEEDED,
    counts=Counts(100, 100, 0),
    created_at=T0,
    planned_at=at(0.5),
    started_at=at(1),
    finalizing_at=at(9),
    finished_at=at(10),
)


def progress(seq: int, minutes: float, done: int) -> Event:
    counts = {"total": 100, "succeeded": done, "failed": 0}
    return Event(seq, "job.progress", {"counts": counts}, at(minutes))


def test_phases_follow_each_other_from_the_submit_to_the_end() -> None:
    pauses = [Event(4, "job.paused", {}, at(3)), Event(6, "job.resumed", {}, at(5))]

    drawn = timeline(JOB, pauses, [], 9, at(20))

    assert [(phase.name, phase.lasted) for phase in drawn.phases] == [
        ("queued", timedelta(minutes=1)),
        ("running", timedelta(minutes=2)),
        ("paused", timedelta(minutes=2)),
        ("running", timedelta(minutes=4)),
        ("finalizing", timedelta(minutes=1)),
    ]
    assert drawn.phases[0].x == 0
    assert sum(phase.width for phase in drawn.phases) == pytest.approx(WIDTH)


def test_a_job_under_way_is_drawn_until_now() -> None:
    job = replace(JOB, state=JobState.RUNNING, finalizing_at=None, finished_at=None)

    drawn = timeline(job, [], [], 2, at(20))

    assert [(phase.name, phase.ended) for phase in drawn.phases] == [("queued", at(1)), ("running", at(20))]


def test_a_job_that_has_just_been_submitted_is_drawn_too() -> None:
    drawn = timeline(a_job(created_at=T0), [], [], 1, T0)

    assert [moment.words for moment in drawn.moments] == ["Submitted"]
    assert drawn.curve == ""


def test_moments_are_in_order_and_say_who_had_what() -> None:
    lost = Event(3, SHARD_LOST, {"shard": 4, "worker_id": "worker_a", "cause": "out_of_memory"}, at(2))
    resumed = Event(4, SHARD_RESUMED, {"shard": 4, "worker_id": "worker_b", "rows_done": 12}, at(3))

    drawn = timeline(JOB, [lost, resumed], [], 4, at(20))

    assert [(moment.words, moment.detail) for moment in drawn.moments] == [
        ("Submitted", ""),
        ("Running", "first claimed after 1 min"),
        ("Worker lost", "shard 4 with worker_a: out of memory"),
        ("Shard resumed", "shard 4 by worker_b, after 12 rows that are done"),
        ("Succeeded", ""),
    ]
    assert len(drawn.marks) == 2


def test_the_curve_goes_through_the_rows_that_were_done() -> None:
    drawn = timeline(JOB, [], [progress(3, 5, 50), progress(4, 9, 100)], 5, at(20))

    assert drawn.curve == "100.0,100.0 500.0,50.0 900.0,0.0"


@pytest.mark.parametrize("last_seq", [0, 1, 2, SAMPLES, SAMPLES + 1, 1_000_000])
def test_of_any_number_of_checkpoints_some_are_read_the_first_and_the_last_among_them(last_seq: int) -> None:
    seqs = sampled(last_seq)

    assert len(seqs) == min(last_seq, SAMPLES)
    assert seqs == sorted(set(seqs))
    assert not seqs or (seqs[0], seqs[-1]) == (1, last_seq)
