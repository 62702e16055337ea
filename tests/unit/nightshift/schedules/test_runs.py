"""Which instants are due or missed, their jitter, and what a run does beside another."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.schedules.plans import CatchUp, Overlap, Plan
from nightshift.schedules.runs import (
    MISSED_AFTER,
    Run,
    RunState,
    Start,
    behind,
    beside,
    due_runs,
    jittered,
)

FIRST = datetime(2026, 11, 2, 1, 30, tzinfo=UTC)
DAY = timedelta(days=1)
PLAN = Plan(name="nightly", cron="30 1 * * *")


def a_run(state: RunState = RunState.SUBMITTED, **fields: Any) -> Run:
    run = Run(
        id="run_1",
        schedule_id="sched_1",
        tenant_id="default",
        version=1,
        due_at=FIRST,
        local_date="2026-11-02",
        state=state,
        job_id="job_1" if state is RunState.SUBMITTED else None,
    )
    return replace(run, **fields)


def due(plan: Plan, now: datetime) -> list[tuple[str, bool]]:
    cron = plan.cron_at(now)
    assert cron is not None
    return [(run.local_date, run.is_missed) for run in due_runs(plan, cron, FIRST, now)]


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_an_instant_that_has_just_come_is_run_and_one_that_has_not_is_not(catch_up: CatchUp) -> None:
    plan = replace(PLAN, catch_up=catch_up)

    assert due(plan, FIRST) == [("2026-11-02", False)]
    assert due(plan, FIRST + MISSED_AFTER) == [("2026-11-02", False)]
    assert due(plan, FIRST - timedelta(seconds=1)) == []


@pytest.mark.parametrize(
    ("catch_up", "missed"),
    [(CatchUp.NONE, [True, True, True]), (CatchUp.LAST, [True, True, False]), (CatchUp.ALL, [False] * 3)],
)
def test_of_the_nights_missed_catch_up_says_which_are_run(catch_up: CatchUp, missed: list[bool]) -> None:
    runs = due(replace(PLAN, catch_up=catch_up), FIRST + 2 * DAY + timedelta(hours=1))

    assert [date for date, _ in runs] == ["2026-11-02", "2026-11-03", "2026-11-04"]
    assert [is_missed for _, is_missed in runs] == missed


def test_after_a_long_time_no_more_runs_are_recorded_than_the_limit() -> None:
    plan = replace(PLAN, cron="* * * * *", catch_up=CatchUp.ALL, catch_up_limit=3)

    assert [date for date, _ in due(plan, FIRST + 365 * DAY)] == ["2027-11-02"] * 3


@given(st.integers(0, 2_000_000), st.integers(1, 86_400))
def test_jitter_is_the_same_for_an_instant_and_within_its_bound(minute: int, jitter_s: int) -> None:
    instant = FIRST + timedelta(minutes=minute)

    starts_at = jittered("sched_1", instant, jitter_s)

    assert instant <= starts_at < instant + timedelta(seconds=jitter_s)
    assert starts_at == jittered("sched_1", instant, jitter_s)


def test_jitter_differs_between_schedules_and_instants() -> None:
    delays = {jittered(f"sched_{number}", FIRST, 3600) for number in range(20)}
    nights = {jittered("sched_1", FIRST + night * DAY, 3600) - night * DAY for night in range(20)}

    assert len(delays) == len(nights) == 20
    assert jittered("sched_1", FIRST, 0) == FIRST


@pytest.mark.parametrize(
    ("overlap", "step"),
    [(Overlap.SKIP, Start.SKIP), (Overlap.QUEUE, Start.WAIT), (Overlap.REPLACE, Start.REPLACE)],
)
def test_beside_a_run_under_way_overlap_decides(overlap: Overlap, step: Start) -> None:
    assert beside(replace(PLAN, overlap=overlap), [a_run()])[0] is step
    assert beside(replace(PLAN, overlap=overlap), [])[0] is Start.NOW


def test_a_queue_has_a_limit() -> None:
    plan = replace(PLAN, overlap=Overlap.QUEUE, catch_up_limit=2)

    assert beside(plan, [a_run(), a_run()])[0] is Start.WAIT
    assert beside(plan, [a_run(), a_run(), a_run()])[0] is Start.SKIP


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (RunState.SUCCEEDED, Start.NOW),
        (RunState.WAITING, Start.WAIT),
        (RunState.SUBMITTED, Start.WAIT),
        (RunState.FAILED, Start.SKIP),
        (RunState.SKIPPED, Start.SKIP),
        (RunState.MISSED, Start.SKIP),
        (RunState.REFUSED, Start.SKIP),
    ],
)
def test_a_run_starts_only_behind_one_that_succeeded(state: RunState, step: Start) -> None:
    assert behind(a_run(state), "first")[0] is step


def test_without_the_run_that_it_follows_a_run_is_skipped() -> None:
    assert behind(None, "first")[0] is Start.SKIP
