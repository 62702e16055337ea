"""A job is late, and urgent, by its rows that are left, its model's pace and the workers that are ready."""

from dataclasses import replace
from datetime import timedelta

from nightshift.jobs import Outlook
from nightshift.jobs.capacity.demand import COLD_START_S
from nightshift.jobs.capacity.forecasts import Forecast, RunningJob, forecasts
from nightshift.jobs.priorities import PriorityClass
from tests.helpers.fakes import STARTS_AT as NOW

PACES = {"m": 2.0}
JOB = RunningJob(
    id="job_1",
    model="m",
    priority=PriorityClass.BACKGROUND,
    rows_left=7200,  # an hour of a worker
    deadline_at=NOW + timedelta(hours=8),
)


def foreseen(*jobs: RunningJob, workers: int = 1) -> list[Forecast]:
    return list(forecasts(jobs, PACES, {"m": workers}, NOW))


def test_jobs_of_a_model_follow_each_other_by_class_and_end() -> None:
    first = replace(JOB, id="job_2", priority=PriorityClass.STANDARD)
    [one, other] = foreseen(JOB, first)
    assert [(one.job.id, one.ends_at), (other.job.id, other.ends_at)] == [
        ("job_2", NOW + timedelta(hours=1)),
        ("job_1", NOW + timedelta(hours=2)),
    ]


def test_ready_workers_share_the_work_and_without_one_a_start_comes_first() -> None:
    [shared] = foreseen(JOB, workers=4)
    [cold] = foreseen(JOB, workers=0)
    assert shared.ends_at == NOW + timedelta(minutes=15)
    assert cold.ends_at == NOW + timedelta(hours=1, seconds=COLD_START_S)


def test_a_model_that_was_never_measured_has_no_forecast() -> None:
    assert foreseen(replace(JOB, model="new")) == []


def test_rows_that_take_longer_than_there_are_dates_are_at_risk_and_stop_no_other_forecast() -> None:
    endless = replace(JOB, id="job_2", rows_left=10**15, priority=PriorityClass.STANDARD)
    assert [one.outlook for one in foreseen(endless, JOB, endless)] == [Outlook.AT_RISK] * 3


def test_the_end_of_a_window_before_the_deadline_is_what_counts() -> None:
    night = replace(JOB, closes_at=NOW + timedelta(minutes=59))
    [late] = foreseen(night)
    [in_time] = foreseen(replace(night, closes_at=NOW + timedelta(hours=9), rows_left=57_600))
    assert late.outlook is Outlook.AT_RISK
    assert in_time.outlook is None, "the deadline is later than the predicted end to the second"


def test_a_job_is_on_track_again_only_with_time_to_spare_and_is_told_each_once() -> None:
    at_risk = replace(JOB, outlook=Outlook.AT_RISK)
    [barely] = foreseen(replace(at_risk, deadline_at=NOW + timedelta(minutes=65)))
    [clearly] = foreseen(replace(at_risk, deadline_at=NOW + timedelta(minutes=70)))
    [again] = foreseen(replace(JOB, outlook=Outlook.ON_TRACK, deadline_at=NOW + timedelta(minutes=30)))
    assert barely.outlook is Outlook.AT_RISK
    assert clearly.outlook is Outlook.ON_TRACK
    assert again.outlook is Outlook.ON_TRACK


def test_a_job_is_urgent_from_five_quarters_of_its_work_before_its_end_on() -> None:
    [day] = foreseen(JOB)
    [night] = foreseen(replace(JOB, closes_at=NOW + timedelta(hours=5)))
    assert day.urgent_at == NOW + timedelta(hours=8 - 1.25)
    assert night.urgent_at == NOW + timedelta(hours=5 - 1.25)


def test_little_work_before_a_deadline_needs_no_record() -> None:
    [small] = foreseen(replace(JOB, rows_left=100))
    assert (small.urgent_at, small.has_moved) == (None, False)


def test_a_time_is_recorded_where_it_has_moved_by_more_than_a_little() -> None:
    [new] = foreseen(JOB)
    assert new.has_moved
    assert new.urgent_at is not None
    [little] = foreseen(replace(JOB, urgent_at=new.urgent_at - timedelta(minutes=8)))
    [much] = foreseen(replace(JOB, urgent_at=new.urgent_at - timedelta(minutes=20)))
    assert (little.has_moved, much.has_moved) == (False, True)
