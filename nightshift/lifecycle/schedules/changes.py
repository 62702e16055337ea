"""Changes that owners order: a plan is applied, paused, resumed, run now or deleted.

Each function is one change in the caller's open transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.jobs import Face, JobSpec
from nightshift.jobs.ids import SUFFIX_LENGTH, new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.schedules.ends import end_run
from nightshift.lifecycle.submission import Submitter, check_hours, new_job
from nightshift.schedules.plans import (
    Overlap,
    Schedule,
    ScheduleProblem,
    ScheduleVersion,
    about_job,
    check_no_circle,
)
from nightshift.schedules.runs import Run, RunState
from nightshift.schedules.variables import (
    DATE,
    PREVIOUS_OUTPUT,
    RUN_ID,
    check_output,
    check_variables,
    replaced,
)
from nightshift.schedules.zones import zone_named
from nightshift.store import Transaction

VERSIONS_KEPT: Final = 100
AFTER_MISSING: Final = "after_missing"

_EARLIER: Final = {DATE: "2000-01-01", RUN_ID: f"run_{'0' * (SUFFIX_LENGTH - 1)}1"}


class Change(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Applied:
    schedule: Schedule
    change: Change


def get_schedule(tx: Transaction, tenant_id: str, name: str, *, is_locked: bool = False) -> Schedule:
    """Raises NotFound, also for another tenant's."""
    schedule = tx.schedules.named(tenant_id, name, is_locked=is_locked)
    if schedule is None:
        raise NotFound(f"No such Schedule object: {name}", param="name")
    return schedule


def check_name(tx: Transaction, tenant_id: str, name: str | None) -> None:
    """Raises Conflict for a job that would have a schedule's name without being a run of it."""
    if name is not None and tx.schedules.named(tenant_id, name) is not None:
        raise Conflict(
            f"Invalid 'name': '{name}' is a schedule, and its runs have this name. Run it now "
            f"(`nightshift schedules run-now {name}`), or choose another name.",
            param="name",
            code="name_of_schedule",
        )


def checked_plan(
    new: ScheduleVersion,
    tenant_id: str,
    submitter: Submitter,
    ceiling: PriorityClass,
    webhook_secret: str | None = None,
) -> ScheduleVersion:
    """A plan that `check_plan` has passed, its job checked as it would be today. Raises InvalidRequest,
    naming the field.
    """
    spec, now = JobSpec.from_json(new.spec), new.created_at
    cron = new.plan.cron_at(now)
    for number, input in enumerate(spec.inputs):
        check_variables(input, f"job.input[{number}]" if spec.further_inputs else "job.input")
    if spec.output is not None:  # else the service keeps the results with the job
        is_daily = cron is None or cron.is_daily(now)
        check_output(spec.output, "job.output", overwrite=new.plan.overwrite, is_daily=is_daily)
    for key, value in (spec.metadata or {}).items():
        check_variables(value, f"job.metadata.{key}")
    values = {
        DATE: str(now.astimezone(zone_named(new.plan.time_zone)).date()),
        RUN_ID: f"run_{'0' * SUFFIX_LENGTH}",
        PREVIOUS_OUTPUT: replaced(spec.output or "", _EARLIER),
    }
    spec = with_values(spec, values)
    job = new_job(tenant_id, Face.NATIVE, spec, fingerprint=new.fingerprint)
    with about_job():
        if cron is not None:
            check_hours(spec, cron.first_after(now) or now)
        checked = submitter.check(job, ceiling, webhook_secret=webhook_secret)
    return replace(new, webhook_secret=checked.webhook_secret)


def with_values(spec: JobSpec, values: Mapping[str, str]) -> JobSpec:
    """The job of a run, its variables replaced."""
    metadata = spec.metadata and {key: replaced(value, values) for key, value in spec.metadata.items()}
    first, *further = (replaced(input, values) for input in spec.inputs)
    output = None if spec.output is None else replaced(spec.output, values)
    return replace(spec, input=first, further_inputs=tuple(further), output=output, metadata=metadata)


def apply(
    tx: Transaction, new: ScheduleVersion, tenant_id: str, submitter: Submitter, now: datetime
) -> Applied:
    """Applies a checked plan on behalf of its key; the same plan again makes no new version.

    Raises InvalidRequest, UnknownModel, Conflict.
    """
    tx.schedules.named(tenant_id, new.plan.name, is_locked=True)
    tx.holdings.take_turn(tenant_id)  # plans applied at once are counted, and make a circle, one by one
    applied = try_plan(tx, new, tenant_id, submitter, now)
    schedule = applied.schedule
    if applied.change is not Change.CREATED:
        tx.schedules.update(schedule)
    elif not tx.schedules.insert(schedule):
        raise Conflict("A schedule of this name was created meanwhile. Apply the plan again.")
    if applied.change is Change.UPDATED:
        tx.schedules.insert_version(schedule)
        tx.schedules.delete_versions(schedule.id, schedule.current.version - VERSIONS_KEPT)
    return applied


def try_plan(
    tx: Transaction, new: ScheduleVersion, tenant_id: str, submitter: Submitter, now: datetime
) -> Applied:
    """The schedule that a checked plan makes, or whatever `apply` would raise; only reads."""
    old = tx.schedules.named(tenant_id, new.plan.name)
    if old is not None and old.current.fingerprint == new.fingerprint:
        # Another key may be in the place of a revoked one.
        again = old if old.key_id == new.key_id else replace(old, key_id=new.key_id, problem=None)
        return Applied(again, Change.UNCHANGED)
    check_no_circle(new.plan, tx.schedules.followed(tenant_id))
    job = new_job(tenant_id, Face.NATIVE, JobSpec.from_json(new.spec), fingerprint=new.fingerprint)
    with about_job():
        submitter.try_model(tx, job)
        submitter.try_file(tx, job, now)
    schedules_max = submitter.settings.schedules_max
    if old is None and tx.schedules.count(tenant_id) >= schedules_max:
        raise Conflict(
            f"There are {schedules_max} schedules already, which is the most a tenant may have "
            "(NIGHTSHIFT_SCHEDULES_MAX).",
            code="too_many_schedules",
        )
    first_at = _first_after(new, now)
    if old is None:
        schedule = Schedule(
            id=new_id("sched"),
            tenant_id=tenant_id,
            name=new.plan.name,
            current=replace(new, version=1, created_at=now),
            key_id=new.key_id,
            created_at=now,
            next_at=first_at,
        )
        return Applied(schedule, Change.CREATED)
    current = replace(new, version=old.current.version + 1, created_at=now)
    is_due = old.next_at is not None and old.next_at <= now  # and about to be recorded
    next_at = None if old.paused_at or first_at is None else old.next_at if is_due else first_at
    changed = replace(old, current=current, key_id=new.key_id, next_at=next_at, problem=None)
    return Applied(changed, Change.UPDATED)


def _first_after(version: ScheduleVersion, now: datetime) -> datetime | None:
    """The plan's next instant; None: it follows another one."""
    cron = version.plan.cron_at(now)
    return None if cron is None else cron.first_after(now)


def pause(tx: Transaction, schedule: Schedule, now: datetime) -> Schedule:
    """Pauses a locked schedule: nothing more is started, and the job under way goes on. A repeat
    changes nothing.
    """
    if schedule.paused_at is not None:
        return schedule
    paused = replace(schedule, paused_at=now, next_at=None)
    tx.schedules.update(paused)
    for run in tx.schedules.under_way(schedule.id):
        if run.state is RunState.WAITING:
            end_run(tx, run, RunState.SKIPPED, "The schedule was paused.", now)
    return paused


def resume(tx: Transaction, schedule: Schedule, now: datetime) -> Schedule:
    """Resumes a locked schedule from now on: what came in its pause is not made up for."""
    if schedule.paused_at is None:
        return schedule
    resumed = replace(schedule, paused_at=None, next_at=_first_after(schedule.current, now))
    tx.schedules.update(resumed)
    return resumed


def run_now(tx: Transaction, schedule: Schedule, now: datetime) -> Run:
    """Records a run of this very instant of a locked schedule, also of a paused one. The scheduler starts it.

    It follows no other plan's run, and none follows it. Raises Conflict.
    """
    under_way = tx.schedules.under_way(schedule.id)
    if under_way and schedule.plan.overlap is Overlap.SKIP:
        last = under_way[-1]
        raise Conflict(
            f"The run of {last.local_date} is under way ({last.job_id or last.id}), and 'overlap' is "
            '"skip". Wait for its end, or cancel its job.'
        )
    run = new_run(schedule, now, str(now.astimezone(zone_named(schedule.plan.time_zone)).date()), now)
    if not tx.schedules.insert_run(run):
        raise Conflict("There is a run of this instant. Try again.")
    return run


def new_run(schedule: Schedule, due_at: datetime, local_date: str, check_at: datetime) -> Run:
    """A run that waits until `check_at` at least."""
    return Run(
        id=new_id("run"),
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        version=schedule.current.version,
        due_at=due_at,
        local_date=local_date,
        state=RunState.WAITING,
        check_at=check_at,
    )


def delete_schedule(tx: Transaction, schedule: Schedule, now: datetime) -> None:
    """Deletes a locked schedule with its versions and runs. Jobs stay, and go on."""
    for run in tx.schedules.under_way(schedule.id):
        tx.schedules.wake(run, now)  # what follows it
    tx.schedules.delete(schedule.tenant_id, schedule.id)


def problem_of(tx: Transaction, schedule: Schedule) -> ScheduleProblem | None:
    """The reason why it does not run as planned, and what to do."""
    after = schedule.plan.after
    if schedule.problem is not None or after is None or tx.schedules.named(schedule.tenant_id, after):
        return schedule.problem
    message = f"It follows '{after}', which there is not: apply that plan, or change 'after'."
    return ScheduleProblem(AFTER_MISSING, message)
