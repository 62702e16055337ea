"""Schedules: every instant has one run, whatever the clock, a second scheduler or a downtime do."""

import inspect
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from nightshift.errors import Conflict
from nightshift.jobs import Counts, Job, JobState, NewJob, StopReason
from nightshift.jobs.ids import new_id
from nightshift.jobs.json_text import fingerprint
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.schedules import changes
from nightshift.lifecycle.schedules.changes import checked_plan
from nightshift.lifecycle.schedules.starting import record
from nightshift.lifecycle.submission import Submitter
from nightshift.lifecycle.transitions import Submitted
from nightshift.process.settings import SubmissionSettings
from nightshift.schedules.plans import CatchUp, Overlap, Plan, Schedule
from nightshift.schedules.runs import Run, RunState
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope, new_key
from nightshift.tenants.tenant import Tenant
from nightshift.tenants.vault import Vault
from scheduler.duties.scheduling import Scheduled, Scheduling, SchedulingConfig
from tests.helpers.fakes import MODEL, FakeClock, a_schedule_version, a_spec, an_api_key
from tests.integration.scheduler.scheduling import TEMPLATE, Place
from tests.integration.store.racing import at_once

pytestmark = pytest.mark.databases("sqlite", "postgresql")

TENANT = "default"
EVENING = datetime(2026, 11, 30, 20, tzinfo=UTC)
NIGHTLY = Plan(name="nightly", cron="30 1 * * *")
FIRST_NIGHT = datetime(2026, 12, 1, 1, 30, tzinfo=UTC)


class Night:
    """A scheduler's duty and the schedules of one tenant, on a clock that the test moves."""

    def __init__(self, place: Place, clock: FakeClock, **settings: int) -> None:
        self.place, self.store, self.clock = place, place.store, clock
        limits = SubmissionSettings().model_copy(update=settings)
        self.submitter = Submitter(place.locations, Vault("a key"), CachedCatalogue([]), limits)
        self.delays: list[tuple[str, float | None]] = []
        self.duty = Scheduling(
            self.store,
            self.submitter,
            observe=lambda outcome, delay_s: self.delays.append((outcome, delay_s)),
        )
        clock.now = EVENING
        key = new_key()
        with self.store.transaction() as tx:
            stored = an_api_key(key, tenant_id=TENANT, created_at=EVENING)
            tx.keys.insert(stored)
        self.key_id = stored.id

    def apply(self, plan: Plan = NIGHTLY, key_id: str | None = None, **spec: Any) -> Schedule:
        folder = self.place.uri(f"{plan.name}-")
        wishes = {"input": self.place.uri("in.jsonl"), "output": f"{folder}{{{{date}}}}-{{{{run_id}}}}/"}
        wanted = a_spec(**{**wishes, "template": TEMPLATE, **spec})
        now = self.store.now()
        new = a_schedule_version(
            plan,
            created_at=now,
            key_id=key_id or self.key_id,
            spec=wanted.to_json(),
            fingerprint=fingerprint("test", plan.to_json() | {"spec": wanted.to_json()}),
        )
        checked = checked_plan(new, TENANT, self.submitter, PriorityClass.INTERACTIVE)
        with self.store.transaction() as tx:
            applied = changes.apply(tx, checked, TENANT, self.submitter, now)
        return applied.schedule

    def at(self, moment: datetime) -> Scheduled:
        """A pass at this time by the database's clock."""
        self.clock.now = moment
        return self.duty.run_once(self.store.now())

    def runs(self, schedule: Schedule) -> list[Run]:
        """Oldest first."""
        with self.store.snapshot() as tx:
            return list(tx.schedules.runs(schedule.id, limit=500))[::-1]

    def states(self, schedule: Schedule) -> list[RunState]:
        return [run.state for run in self.runs(schedule)]

    def schedule(self, schedule: Schedule) -> Schedule:
        with self.store.snapshot() as tx:
            known = tx.schedules.get(TENANT, schedule.id)
        assert known is not None
        return known

    def jobs(self) -> list[Job]:
        """Oldest first."""
        with self.store.snapshot() as tx:
            return list(tx.jobs.list(TENANT, limit=1000))[::-1]

    def end(self, run: Run, state: JobState = JobState.SUCCEEDED) -> None:
        assert run.job_id is not None
        self.finalize(run.job_id)
        with self.store.transaction() as tx:
            assert transitions.finish(tx, tx.jobs.fetch(run.job_id), state, tx.now(), counts=Counts(0))

    def finalize(self, job_id: str) -> None:
        with self.store.transaction() as tx:
            transitions.plan(tx, tx.jobs.fetch(job_id), MODEL, [], tx.now())
            tx.jobs.mark_finalizing(job_id, tx.now())

    def change(self, schedule: Schedule, change: Any) -> Any:
        with self.store.transaction() as tx:
            locked = changes.get_schedule(tx, TENANT, schedule.name, is_locked=True)
            return change(tx, locked, tx.now())


@pytest.fixture
def night(place: Place, clock: FakeClock) -> Night:
    return Night(place, clock)


def test_a_run_gets_its_job_at_its_instant_under_the_plans_name_and_the_local_date(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, time_zone="Asia/Tokyo"), metadata={"night": "{{date}}"})

    assert night.at(datetime(2026, 12, 1, 16, 29, 59, tzinfo=UTC)) == Scheduled()
    made = night.at(datetime(2026, 12, 1, 16, 30, tzinfo=UTC))

    [run], [job] = night.runs(schedule), night.jobs()
    assert made.submitted == 1
    assert (run.state, run.job_id, run.local_date) == (RunState.SUBMITTED, job.id, "2026-12-02")
    assert (job.spec.name, job.spec.run_date) == ("nightly", "2026-12-02")
    assert job.spec.output == run.output == night.place.uri(f"nightly-2026-12-02-{run.id}/")
    assert job.spec.metadata == {"night": "2026-12-02"}
    assert night.delays == [("submitted", 0.0)]


@pytest.mark.parametrize(
    ("state", "becomes"),
    [
        (JobState.SUCCEEDED, RunState.SUCCEEDED),
        (JobState.FAILED, RunState.FAILED),
        (JobState.EXPIRED, RunState.FAILED),
        (JobState.CANCELLED, RunState.FAILED),
    ],
)
def test_a_run_ends_with_its_job(night: Night, state: JobState, becomes: RunState) -> None:
    schedule = night.apply()
    night.at(FIRST_NIGHT)
    night.end(night.runs(schedule)[0], state)

    [run] = night.runs(schedule)
    assert (run.state, run.ended_at) == (becomes, FIRST_NIGHT)


def test_two_schedulers_at_once_make_one_run_of_an_instant(night: Night) -> None:
    schedules = [night.apply(replace(NIGHTLY, name=f"plan-{number}")) for number in range(8)]
    night.clock.now = FIRST_NIGHT
    others = [Scheduling(night.store, night.submitter) for _ in range(2)]

    at_once(*(partial(duty.run_once, FIRST_NIGHT) for duty in others))

    assert [night.states(schedule) for schedule in schedules] == [[RunState.SUBMITTED]] * 8
    assert len(night.jobs()) == 8


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
@pytest.mark.parametrize("before_minute", [90, 100, 230])
def test_a_step_of_the_clock_makes_no_second_run_and_loses_none(
    night: Night, step: timedelta, before_minute: int
) -> None:
    hourly = replace(NIGHTLY, cron="30 * * * *", overlap=Overlap.QUEUE, catch_up=CatchUp.ALL)
    schedule = night.apply(hourly)
    for minute in range(0, 480, 10):
        night.at(EVENING + timedelta(minutes=minute) + (step if minute >= before_minute else timedelta()))
        for run in night.runs(schedule):
            if run.state is RunState.SUBMITTED:
                night.end(run)

    last = EVENING + timedelta(minutes=470) + step
    hours = [EVENING + timedelta(minutes=30, hours=hour) for hour in range(24)]
    assert [run.due_at for run in night.runs(schedule)] == [at for at in hours if at <= last]
    assert set(night.states(schedule)) == {RunState.SUCCEEDED}
    assert len(night.jobs()) == len(night.runs(schedule))


def test_an_hours_downtime_costs_no_night(night: Night) -> None:
    schedule = night.apply()
    made = night.at(FIRST_NIGHT + timedelta(hours=1))
    again = night.at(FIRST_NIGHT + timedelta(hours=1, seconds=1))

    assert (made.submitted, again) == (1, Scheduled())
    assert [run.local_date for run in night.runs(schedule)] == ["2026-12-01"]
    assert night.delays == [("submitted", 3600.0)]


def test_after_a_restored_backup_no_more_is_made_up_for_than_the_limit(night: Night) -> None:
    plan = replace(NIGHTLY, cron="*/5 * * * *", overlap=Overlap.QUEUE, catch_up=CatchUp.ALL, catch_up_limit=4)
    schedule = night.apply(plan)

    made = night.at(EVENING + timedelta(days=30))

    assert made.submitted == 1
    assert night.states(schedule) == [RunState.SUBMITTED, *[RunState.WAITING] * 3]
    assert night.schedule(schedule).next_at == EVENING + timedelta(days=30, minutes=5)


def test_with_catch_up_none_a_missed_night_is_told_and_not_run(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, catch_up=CatchUp.NONE))

    made = night.at(FIRST_NIGHT + timedelta(hours=1))

    [run], problem = night.runs(schedule), night.schedule(schedule).problem
    assert (made.missed, run.state, night.jobs()) == (1, RunState.MISSED, [])
    assert problem is not None
    assert problem.code == "run_missed"
    night.at(FIRST_NIGHT + timedelta(days=1))
    assert night.schedule(schedule).problem is None, "the next one ran"


def test_jitter_delays_a_run_and_the_instant_stays(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, jitter="1h"))
    night.at(FIRST_NIGHT)
    [waiting] = night.runs(schedule)
    assert (waiting.state, waiting.due_at) == (RunState.WAITING, FIRST_NIGHT)
    assert waiting.check_at is not None

    night.at(waiting.check_at)

    [run] = night.runs(schedule)
    assert (run.state, run.due_at, run.started_at) == (RunState.SUBMITTED, FIRST_NIGHT, waiting.check_at)


def test_with_overlap_skip_a_run_beside_another_is_skipped(night: Night) -> None:
    schedule = night.apply()
    night.at(FIRST_NIGHT)
    night.at(FIRST_NIGHT + timedelta(days=1))

    first, second = night.runs(schedule)
    assert (first.state, second.state) == (RunState.SUBMITTED, RunState.SKIPPED)
    assert first.job_id in str(second.reason)


def test_with_overlap_queue_a_run_waits_for_the_end_of_the_one_before(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, overlap=Overlap.QUEUE))
    night.at(FIRST_NIGHT)
    later = FIRST_NIGHT + timedelta(days=1)
    assert night.at(later).submitted == 0

    night.end(night.runs(schedule)[0], JobState.FAILED)
    night.at(later + timedelta(seconds=1))

    assert night.states(schedule) == [RunState.FAILED, RunState.SUBMITTED]


def test_a_job_that_ends_while_the_next_run_is_looked_at_still_wakes_it(night: Night) -> None:
    schedules = [
        night.apply(replace(NIGHTLY, name=f"plan-{number}", overlap=Overlap.QUEUE)) for number in range(6)
    ]
    night.at(FIRST_NIGHT)
    night.clock.now = FIRST_NIGHT + timedelta(days=1)
    first_runs = [night.runs(schedule)[0] for schedule in schedules]

    at_once(
        lambda: [night.end(run) for run in first_runs] and None,
        lambda: night.duty.run_once(night.clock.now) and None,
    )
    night.at(night.clock.now)

    assert [night.states(schedule) for schedule in schedules] == [
        [RunState.SUCCEEDED, RunState.SUBMITTED]
    ] * 6


def test_with_overlap_replace_the_job_before_is_cancelled_and_the_run_waits_for_its_end(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, overlap=Overlap.REPLACE))
    night.at(FIRST_NIGHT)
    later = FIRST_NIGHT + timedelta(days=1)
    made = night.at(later)

    [job] = night.jobs()
    assert (made.cancelled, job.stop_reason) == (1, StopReason.CANCELLED)
    assert night.states(schedule) == [RunState.SUBMITTED, RunState.WAITING]
    assert night.at(later + timedelta(seconds=1)).cancelled == 0
    night.end(night.runs(schedule)[0], JobState.CANCELLED)
    night.at(later + timedelta(seconds=2))
    assert night.states(schedule) == [RunState.FAILED, RunState.SUBMITTED]


def test_a_job_that_is_finalizing_is_not_replaced(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, overlap=Overlap.REPLACE))
    night.at(FIRST_NIGHT)
    [job] = night.jobs()
    night.finalize(job.id)
    later = FIRST_NIGHT + timedelta(days=1)

    assert night.at(later).cancelled == 0
    assert night.jobs()[0].stop_reason is None
    night.end(night.runs(schedule)[0])
    night.at(later + timedelta(seconds=1))
    assert night.states(schedule) == [RunState.SUCCEEDED, RunState.SUBMITTED]


def test_a_run_that_replaces_ends_those_that_wait(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, overlap=Overlap.REPLACE))
    for day in range(3):
        night.at(FIRST_NIGHT + timedelta(days=day))

    assert night.states(schedule) == [RunState.SUBMITTED, RunState.SKIPPED, RunState.WAITING]


FOLLOWING = Plan(name="second", after="nightly")


def test_a_run_that_follows_another_starts_when_that_has_succeeded(night: Night) -> None:
    first, second, third = (
        night.apply(),
        night.apply(FOLLOWING),
        night.apply(Plan(name="third", after="second")),
    )
    night.at(FIRST_NIGHT)
    assert (night.states(second), night.states(third)) == ([RunState.WAITING], [RunState.WAITING])

    night.end(night.runs(first)[0])
    night.at(FIRST_NIGHT + timedelta(hours=2))
    assert (night.states(second), night.states(third)) == ([RunState.SUBMITTED], [RunState.WAITING])

    night.end(night.runs(second)[0])
    night.at(FIRST_NIGHT + timedelta(hours=3))
    assert night.states(third) == [RunState.SUBMITTED]
    assert {run.local_date for run in (*night.runs(second), *night.runs(third))} == {"2026-12-01"}


def test_behind_a_run_that_failed_nothing_is_run(night: Night) -> None:
    first, second, third = (
        night.apply(),
        night.apply(FOLLOWING),
        night.apply(Plan(name="third", after="second")),
    )
    night.at(FIRST_NIGHT)
    night.end(night.runs(first)[0], JobState.FAILED)
    night.at(FIRST_NIGHT + timedelta(hours=1))
    night.at(FIRST_NIGHT + timedelta(hours=2))

    assert (night.states(second), night.states(third)) == ([RunState.SKIPPED], [RunState.SKIPPED])
    assert "failed" in str(night.runs(second)[0].reason)


def test_behind_a_run_that_was_missed_nothing_is_run(night: Night) -> None:
    night.apply(replace(NIGHTLY, catch_up=CatchUp.NONE))
    second = night.apply(FOLLOWING)

    night.at(FIRST_NIGHT + timedelta(hours=1))

    assert night.states(second) == [RunState.SKIPPED]


def test_what_follows_a_deleted_schedule_is_skipped(night: Night) -> None:
    first, second = night.apply(), night.apply(FOLLOWING)
    night.at(FIRST_NIGHT)
    night.change(first, changes.delete_schedule)
    night.at(FIRST_NIGHT + timedelta(minutes=1))

    assert night.states(second) == [RunState.SKIPPED]
    assert len(night.jobs()) == 1, "its job goes on"


def test_the_output_of_the_last_run_that_succeeded_is_a_variable(night: Night) -> None:
    schedule = night.apply(metadata={"before": "{{previous_output}}"})
    for day, state in enumerate((JobState.SUCCEEDED, JobState.FAILED, None)):
        night.at(FIRST_NIGHT + timedelta(days=day))
        if state is not None:
            night.end(night.runs(schedule)[-1], state)

    first, _, third = night.jobs()
    assert first.spec.metadata == {"before": ""}
    assert third.spec.metadata == {"before": first.spec.output}


def test_an_input_that_is_the_previous_output_is_refused_while_there_is_none(night: Night) -> None:
    schedule = night.apply(input="{{previous_output}}part-*.jsonl")

    assert night.at(FIRST_NIGHT).refused == 1

    problem = night.schedule(schedule).problem
    assert problem is not None
    assert problem.code == "no_previous_output"


def test_a_run_now_is_a_run_of_its_own_instant_and_the_nights_stay(night: Night) -> None:
    schedule = night.apply()
    run = night.change(schedule, changes.run_now)
    night.at(EVENING + timedelta(seconds=1))
    night.end(night.runs(schedule)[0])
    night.at(FIRST_NIGHT)

    assert run.local_date == "2026-11-30"
    assert [(one.due_at, one.state) for one in night.runs(schedule)] == [
        (EVENING, RunState.SUCCEEDED),
        (FIRST_NIGHT, RunState.SUBMITTED),
    ]


def test_a_run_now_of_a_plan_that_follows_another_waits_for_none(night: Night) -> None:
    night.apply()
    second = night.apply(FOLLOWING)
    night.change(second, changes.run_now)
    night.at(EVENING + timedelta(seconds=1))

    assert night.states(second) == [RunState.SUBMITTED]


def test_a_paused_schedule_starts_nothing_and_makes_up_for_nothing(night: Night) -> None:
    schedule = night.apply(replace(NIGHTLY, jitter="1h"))
    night.at(FIRST_NIGHT)
    night.change(schedule, changes.pause)
    night.at(FIRST_NIGHT + timedelta(days=2))
    night.change(schedule, changes.resume)
    night.at(FIRST_NIGHT + timedelta(days=2, hours=3))

    assert night.states(schedule) == [RunState.SKIPPED]
    assert night.schedule(schedule).next_at == FIRST_NIGHT + timedelta(days=3)


def test_a_changed_plan_goes_on_with_its_history_and_its_next_instant(night: Night) -> None:
    schedule = night.apply()
    night.at(FIRST_NIGHT)
    changed = night.apply(replace(NIGHTLY, cron="0 3 * * *"))

    assert (changed.id, changed.current.version) == (schedule.id, 2)
    assert changed.next_at == datetime(2026, 12, 1, 3, tzinfo=UTC)
    assert len(night.runs(schedule)) == 1


def test_a_plan_that_changes_at_its_instant_loses_no_run(night: Night) -> None:
    schedule = night.apply()
    night.clock.now = FIRST_NIGHT + timedelta(milliseconds=100)
    night.apply(replace(NIGHTLY, description="changed"))
    night.at(FIRST_NIGHT + timedelta(milliseconds=200))

    assert [run.due_at for run in night.runs(schedule)] == [FIRST_NIGHT]


def test_plans_that_are_applied_at_once_are_counted_one_by_one(place: Place, clock: FakeClock) -> None:
    night = Night(place, clock, schedules_max=2)

    def try_to_apply(number: int) -> bool:
        try:
            night.apply(replace(NIGHTLY, name=f"plan-{number}"))
        except Conflict:
            return False
        return True

    assert sorted(at_once(*(partial(try_to_apply, number) for number in range(4)))) == [
        False,
        False,
        True,
        True,
    ]


def test_a_schedule_is_found_while_its_plan_changes(night: Night) -> None:
    schedule = night.apply()

    at_once(
        lambda: [night.apply(replace(NIGHTLY, cron=f"{minute} 3 * * *")) for minute in range(20)] and None,
        lambda: [night.change(schedule, changes.pause) for _ in range(20)] and None,
    )

    known = night.schedule(schedule)
    assert (known.current.version, known.next_at) == (21, None)


class TestRefusals:
    def test_a_revoked_key_starts_nothing_and_another_that_applies_the_plan_does(self, night: Night) -> None:
        schedule = night.apply()
        with night.store.transaction() as tx:
            tx.keys.revoke(night.key_id, tx.now())
        night.at(FIRST_NIGHT)

        [run], known = night.runs(schedule), night.schedule(schedule)
        assert (run.state, night.jobs()) == (RunState.REFUSED, [])
        assert known.problem is not None
        assert known.problem.code == "key_revoked"
        assert "apply the plan again" in known.problem.message

        other = an_api_key(new_key(), tenant_id=TENANT, created_at=EVENING)
        with night.store.transaction() as tx:
            tx.keys.insert(other)
        again = night.apply(key_id=other.id)
        night.at(FIRST_NIGHT + timedelta(days=1))
        assert (again.current.version, again.problem) == (1, None)
        assert night.states(schedule) == [RunState.REFUSED, RunState.SUBMITTED]

    def test_a_rotated_key_is_followed_to_the_one_in_its_place(self, night: Night) -> None:
        schedule = night.apply()
        other = an_api_key(new_key(), tenant_id=TENANT, created_at=EVENING)
        with night.store.transaction() as tx:
            tx.keys.insert(other)
            tx.keys.replace(night.key_id, other.id, EVENING)
        night.at(FIRST_NIGHT)

        assert night.states(schedule) == [RunState.SUBMITTED]

    def test_a_key_without_the_scope_submits_nothing(self, night: Night) -> None:
        reader = an_api_key(new_key(), tenant_id=TENANT, created_at=EVENING, scopes=frozenset({Scope.READ}))
        with night.store.transaction() as tx:
            tx.keys.insert(reader)
        schedule = night.apply(key_id=reader.id)
        night.at(FIRST_NIGHT)

        assert night.states(schedule) == [RunState.REFUSED]

    def test_a_disabled_tenants_runs_are_refused(self, night: Night) -> None:
        schedule = night.apply()
        with night.store.transaction() as tx:
            tx.tenants.insert(Tenant(id=TENANT, description="", created_at=EVENING, disabled_at=EVENING))
        night.at(FIRST_NIGHT)

        assert night.states(schedule) == [RunState.REFUSED]
        problem = night.schedule(schedule).problem
        assert problem is not None
        assert problem.code == "tenant_disabled"

    def test_a_run_is_put_off_while_the_tenant_has_too_many_jobs(
        self, place: Place, clock: FakeClock
    ) -> None:
        night = Night(place, clock, bulk_jobs_max=1)
        first, second = night.apply(), night.apply(replace(NIGHTLY, name="other"))
        night.at(FIRST_NIGHT)
        assert sorted((*night.states(first), *night.states(second))) == [RunState.SUBMITTED, RunState.WAITING]
        [started] = [run for one in (first, second) for run in night.runs(one) if run.job_id]

        night.end(started)
        night.at(FIRST_NIGHT + timedelta(minutes=1))

        assert len(night.jobs()) == 2
        assert [night.schedule(one).problem for one in (first, second)] == [None, None]

    def test_a_job_that_cannot_be_submitted_any_more_is_refused_with_the_reason(self, night: Night) -> None:
        file = night.place.upload(b"{}")
        schedule = night.apply(input=file.id)
        with night.store.transaction() as tx:
            tx.files.expire(TENANT, file.id, EVENING)
        night.at(FIRST_NIGHT)

        [run] = night.runs(schedule)
        assert run.state is RunState.REFUSED
        assert file.id in str(run.reason)


def test_a_run_that_cannot_be_started_holds_up_no_other(
    night: Night, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = night.apply(), night.apply(replace(NIGHTLY, name="other"))
    submit = Submitter.submit_bulk

    def fails_for_one(self: Submitter, tx: Transaction, new: NewJob, now: datetime) -> Submitted:
        if new.spec.name == broken.name:
            raise ZeroDivisionError
        return submit(self, tx, new, now)

    monkeypatch.setattr(Submitter, "submit_bulk", fails_for_one)
    night.at(FIRST_NIGHT)

    assert (night.states(broken), night.states(other)) == ([RunState.REFUSED], [RunState.SUBMITTED])
    assert night.runs(broken)[0].id in str(night.runs(broken)[0].reason)
    assert "a run could not be started" in caplog.text


def test_a_schedule_whose_run_cannot_be_recorded_holds_up_no_other(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = night.apply(), night.apply(replace(NIGHTLY, name="other"))

    def fails_for_one(tx: Transaction, schedule_id: str, now: datetime) -> list[RunState]:
        if schedule_id == broken.id:
            raise ZeroDivisionError
        return record(tx, schedule_id, now)

    with monkeypatch.context() as patch:
        patch.setattr("scheduler.duties.scheduling.record", fails_for_one)
        with pytest.raises(ZeroDivisionError):
            night.at(FIRST_NIGHT)
    assert night.states(other) == [RunState.SUBMITTED]

    night.at(FIRST_NIGHT + timedelta(minutes=1))
    assert night.states(broken) == [RunState.SUBMITTED]


def test_a_row_of_plans_may_be_longer_than_calls_may_be_nested(night: Night) -> None:
    for number in range(150, 0, -1):  # the last one first: what it follows is not there yet
        night.apply(Plan(name=f"plan-{number:03}", after=f"plan-{number - 1:03}"))
    night.apply(replace(NIGHTLY, name="plan-000"))
    with night.store.snapshot() as tx:
        last = changes.get_schedule(tx, TENANT, "plan-150")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 120)
    try:
        night.at(FIRST_NIGHT)
    finally:
        sys.setrecursionlimit(limit)

    assert night.states(last) == [RunState.WAITING]


def test_tenants_take_turns_so_that_ones_many_plans_do_not_hold_up_anothers(night: Night) -> None:
    many = [night.apply(replace(NIGHTLY, name=f"plan-{number}")) for number in range(3)]
    late = FIRST_NIGHT + timedelta(minutes=1)
    other = replace(many[0], id=new_id("sched"), tenant_id="other", next_at=late)
    with night.store.transaction() as tx:
        tx.schedules.insert(other)
        for schedule, at in (*((one, FIRST_NIGHT) for one in many), (other, late)):
            tx.schedules.insert_run(changes.new_run(schedule, at, "2026-12-01", at))

    with night.store.snapshot() as tx:
        due, runs = tx.schedules.due(late, 2), tx.schedules.to_check(late, 2)

    assert [one.tenant_id for one in due] == [one.tenant_id for one in runs] == [TENANT, "other"]


def test_old_runs_are_deleted_but_not_one_under_way(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.lifecycle.schedules.starting.RUNS_KEPT", 3)
    schedule = night.apply()
    for day in range(6):
        night.at(FIRST_NIGHT + timedelta(days=day))

    assert night.states(schedule) == [RunState.SUBMITTED, *[RunState.SKIPPED] * 3]


def test_a_pass_takes_so_many_schedules_and_the_next_follows_at_once(night: Night) -> None:
    schedules = [night.apply(replace(NIGHTLY, name=f"plan-{number}")) for number in range(3)]
    duty = Scheduling(night.store, night.submitter, SchedulingConfig(per_pass_max=2))
    night.clock.now = FIRST_NIGHT

    passes = [duty.run_once(FIRST_NIGHT) for _ in range(2)]

    assert [(one.submitted, one.has_more) for one in passes] == [(2, True), (1, False)]
    assert {state for one in schedules for state in night.states(one)} == {RunState.SUBMITTED}


def test_the_duty_is_due_at_the_next_instant_or_when_a_run_is_to_be_looked_at(night: Night) -> None:
    assert night.duty.due_at(night.store.pending()) is None
    schedule = night.apply(replace(NIGHTLY, jitter="1h"))
    assert night.duty.due_at(night.store.pending()) == FIRST_NIGHT

    night.at(FIRST_NIGHT)

    [run] = night.runs(schedule)
    assert night.duty.due_at(night.store.pending()) == run.check_at
