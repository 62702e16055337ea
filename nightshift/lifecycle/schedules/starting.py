"""Records the instants of schedules that have come, and starts their runs.

An instant is recorded once: its schedule and it are unique. A run gets its job in the transaction that says
so, and only while it waits. So no clock, no second scheduler and no crash makes a second job of an instant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from nightshift.errors import InvalidRequest, NightshiftError, OutputInUse, TooManyRequests
from nightshift.jobs import Face, JobSpec, NewJob
from nightshift.jobs.json_text import fingerprint
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.schedules.changes import new_run, with_values
from nightshift.lifecycle.schedules.ends import end_run
from nightshift.lifecycle.submission import Submitter, new_job
from nightshift.schedules.plans import Schedule, ScheduleProblem
from nightshift.schedules.runs import DueRun, Run, RunState, Start, behind, beside, due_runs, jittered
from nightshift.schedules.variables import DATE, PREVIOUS_OUTPUT, RUN_ID, variables_of
from nightshift.store import Transaction
from nightshift.store.jobs.jobs import RUNNABLE_STATES
from nightshift.tenants.keys import Scope
from nightshift.tenants.tenant import TenantState

RUNS_KEPT: Final = 1000  # of a schedule
TRIED_AGAIN_AFTER: Final = timedelta(seconds=30)
ROTATIONS_MAX: Final = 100  # of a key, since it applied the plan

RUN_MISSED: Final = "run_missed"
KEY_REVOKED: Final = "key_revoked"
TENANT_DISABLED: Final = "tenant_disabled"
NO_PREVIOUS_OUTPUT: Final = "no_previous_output"
START_FAILED: Final = "start_failed"
INVALID_PLAN: Final = "invalid_plan"


@dataclass(frozen=True)
class Looked:
    """A run after it was looked at."""

    state: RunState
    delay_s: float | None = None  # of a run that was submitted: since it was due to be looked at
    job_to_cancel: str | None = None  # to be cancelled in a transaction of its own


def record(tx: Transaction, schedule_id: str, now: datetime) -> list[RunState]:
    """Records a schedule's instants until now, and the runs that follow them. Returns their states: none if
    another process was first.
    """
    schedule = tx.schedules.lock(schedule_id)
    if schedule is None or schedule.next_at is None or schedule.next_at > now:
        return []
    plan = schedule.plan
    try:
        cron = plan.cron_at(now)
    except InvalidRequest as error:  # a zone that the time zone database has no longer
        problem = ScheduleProblem(INVALID_PLAN, f"{error.message} Apply the plan with another.")
        tx.schedules.update(replace(schedule, next_at=None, problem=problem))
        return []
    if cron is None:
        return []
    runs = [
        _recorded(tx, schedule, due, jittered(schedule.id, due.instant, plan.jitter_s), now)
        for due in due_runs(plan, cron, schedule.next_at, now)
    ]
    recorded = [run for run in runs if run is not None]
    missed = [run for run in recorded if run.state is RunState.MISSED]
    problem_now = _missed(missed) if missed else schedule.problem
    tx.schedules.update(replace(schedule, next_at=cron.first_after(now), problem=problem_now))
    tx.schedules.delete_old_runs(schedule.id, RUNS_KEPT)
    return [run.state for run in recorded]


def _recorded(
    tx: Transaction, schedule: Schedule, due: DueRun, check_at: datetime, now: datetime
) -> Run | None:
    """The run, with those of the plans that follow. None: it was recorded before."""
    run = new_run(schedule, due.instant, due.local_date, check_at)
    if due.is_missed:
        late = str(now - due.instant).split(".")[0]
        reason = f"No scheduler ran at its time: it was seen {late} later, and 'catch_up' leaves it out."
        run = replace(run, state=RunState.MISSED, check_at=None, ended_at=now, reason=reason)
    if not tx.schedules.insert_run(run):
        return None
    _record_followers(tx, schedule, run)
    return run


def _record_followers(tx: Transaction, schedule: Schedule, run: Run) -> None:
    """Records the runs of what follows; those of a missed run are looked at once, and skipped."""
    recorded = [schedule]
    for followed in recorded:
        for follower in tx.schedules.followers(schedule.tenant_id, followed.name):
            own = new_run(follower, run.due_at, run.local_date, run.check_at or run.due_at)
            if tx.schedules.insert_run(replace(own, follows=followed.id)):
                recorded.append(follower)


def _missed(missed: Sequence[Run]) -> ScheduleProblem:
    dates = ", ".join(dict.fromkeys(run.local_date for run in missed[-3:]))
    return ScheduleProblem(
        RUN_MISSED,
        f"{len(missed)} runs were missed, the last of {dates}: no scheduler ran at their time. Run the "
        "schedule now if you need one; 'catch_up' says which are made up for.",
    )


def look(tx: Transaction, run: Run, submitter: Submitter, now: datetime) -> Looked | None:
    """Starts a run that waits, or says what it waits for, or ends it. None: another process was first."""
    schedule = tx.schedules.lock(run.schedule_id)
    if schedule is None or not tx.schedules.take_run(run.id):
        return None
    step, reason = Start.NOW, ""
    if run.follows is not None:
        followed = tx.schedules.run_of(run.follows, run.due_at)
        step, reason = behind(followed, schedule.plan.after or "another plan")
    earlier = tx.schedules.under_way(schedule.id, before=run.due_at)
    if step is Start.NOW:
        step, reason = beside(schedule.plan, earlier)
    if step is Start.NOW:
        return _submit(tx, schedule, run, submitter, now)
    if step is Start.SKIP:
        end_run(tx, run, RunState.SKIPPED, reason, now)
        return Looked(RunState.SKIPPED)
    job = _replaced(tx, run, earlier, now) if step is Start.REPLACE else None
    # Looked at again until its job is told to stop: what ends the job then wakes the run.
    tx.schedules.change_run(run.id, reason=reason, check_at=None if job is None else now)
    return Looked(RunState.WAITING, job_to_cancel=job)


def _replaced(tx: Transaction, run: Run, earlier: Sequence[Run], now: datetime) -> str | None:
    """Ends the earlier runs that wait. Returns the job that is to be cancelled, if that is still possible.

    Not here: that locks the job, and what ends a job locks it before its run.
    """
    for other in earlier:
        if other.state is RunState.WAITING:
            end_run(tx, other, RunState.SKIPPED, f"The run of {run.local_date} replaces it.", now)
    jobs = [tx.jobs.fetch(other.job_id) for other in earlier if other.job_id is not None]
    return next((job.id for job in jobs if job.state in RUNNABLE_STATES and job.stop_reason is None), None)


def _submit(tx: Transaction, schedule: Schedule, run: Run, submitter: Submitter, now: datetime) -> Looked:
    try:
        new = submitter.check(_job(tx, schedule, run), _ceiling(tx, schedule, now))
        new = replace(new, webhook_secret=schedule.current.webhook_secret)
        job = submitter.submit_bulk(tx, new, now).job
    except OutputInUse as error:
        return _not_submitted(tx, schedule, run, error, now, try_again=True)
    except TooManyRequests as error:
        return _not_submitted(tx, schedule, run, error, now, try_again=error.retry_helps)
    except InvalidRequest as error:
        return _not_submitted(tx, schedule, run, error, now)
    tx.schedules.change_run(
        run.id,
        state=RunState.SUBMITTED,
        job_id=job.id,
        output=job.spec.output,
        version=schedule.current.version,
        started_at=now,
        reason=None,
    )
    if schedule.problem is not None:
        tx.schedules.update(replace(schedule, problem=None))
    delay_s = None if run.check_at is None else (now - run.check_at).total_seconds()
    return Looked(RunState.SUBMITTED, delay_s)


def _job(tx: Transaction, schedule: Schedule, run: Run) -> NewJob:
    """The run's job, found by the plan's name and the local date. Raises InvalidRequest."""
    spec = JobSpec.from_json(schedule.current.spec)
    earlier = tx.schedules.last_output(run.schedule_id) or ""
    values = {DATE: run.local_date, RUN_ID: run.id, PREVIOUS_OUTPUT: earlier}
    if not earlier and any(PREVIOUS_OUTPUT in variables_of(input) for input in spec.inputs):
        raise InvalidRequest(
            "'job.input' names {{previous_output}}, and no run has succeeded yet: run the schedule once with "
            "another input.",
            code=NO_PREVIOUS_OUTPUT,
        )
    return new_job(
        run.tenant_id,
        Face.NATIVE,
        replace(with_values(spec, values), name=schedule.name, run_date=run.local_date),
        fingerprint=fingerprint("/v1/schedules", {"run": run.id}),
        priority=PriorityClass(schedule.current.priority),
    )


def _ceiling(tx: Transaction, schedule: Schedule, now: datetime) -> PriorityClass:
    """The best class that the tenant's jobs may have. Raises InvalidRequest if neither the tenant nor the key
    that applied the plan could submit now.
    """
    tenant = tx.tenants.find(schedule.tenant_id)
    if tenant is not None and tenant.state is not TenantState.ACTIVE:
        message = "The tenant is disabled: an administrator of the service can enable it."
        raise InvalidRequest(message, code=TENANT_DISABLED)
    if not _may_submit(tx, schedule.key_id, now):
        raise InvalidRequest(
            f"The API key {schedule.key_id}, which applied the plan, was revoked, has expired or lost the "
            "scope 'submit': apply the plan again with another key.",
            code=KEY_REVOKED,
        )
    return PriorityClass.INTERACTIVE if tenant is None else tenant.priority_ceiling


def _may_submit(tx: Transaction, key_id: str, now: datetime) -> bool:
    """Whether the key, or one that it was rotated to, may submit."""
    wanted: str | None = key_id
    for _ in range(ROTATIONS_MAX):
        key = None if wanted is None else tx.keys.find(wanted)
        if key is None:
            return False
        if key.is_valid(now) and Scope.SUBMIT in key.scopes:
            return True
        wanted = key.replaced_by
    return False


def _not_submitted(
    tx: Transaction,
    schedule: Schedule,
    run: Run,
    error: NightshiftError,
    now: datetime,
    *,
    try_again: bool = False,
) -> Looked:
    """The run is refused, or waits for a limit or a folder that keeps its job out at present."""
    tx.schedules.update(replace(schedule, problem=ScheduleProblem(error.code or "error", error.message)))
    if try_again:
        tx.schedules.change_run(run.id, reason=error.message, check_at=now + TRIED_AGAIN_AFTER)
        return Looked(RunState.WAITING)
    end_run(tx, run, RunState.REFUSED, error.message, now)
    return Looked(RunState.REFUSED)


def give_up(tx: Transaction, run: Run, now: datetime) -> Looked | None:
    """Refuses a run whose start failed with an unforeseen error. None: another process was first."""
    schedule = tx.schedules.lock(run.schedule_id)
    if schedule is None or not tx.schedules.take_run(run.id):
        return None
    message = f"The run could not be started: the scheduler's log says why, beside {run.id}."
    return _not_submitted(tx, schedule, run, NightshiftError(message, code=START_FAILED), now)
