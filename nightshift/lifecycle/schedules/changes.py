"""Changes that owners order: a plan is applied, paused, resumed, run now or deleted.

Each function is one change in the caller's open transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from nightshift.errors import Conflict, InvalidRequest, NotFound
from nightshift.jobs import Face, JobSpec, JsonObject
from nightshift.jobs.ids import SUFFIX_LENGTH, new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.schedules.ends import end_run
from nightshift.lifecycle.submission import Submitter, check_hours, new_job
from nightshift.schedules.plans import (
    Overlap,
    Plan,
    Schedule,
    ScheduleProblem,
    ScheduleVersion,
    check_no_circle,
    of_job,
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


@dataclass(frozen=True, kw_only=True)
class NewPlan:
    """A plan as it was sent, and its job."""

    plan: Plan
    job: JsonObject  # as sent
    webhook: JsonObject | None  # likewise, without its secret
    spec: JobSpec
    priority: PriorityClass
    fingerprint: str
    webhook_secret: bytes | None = None  # encrypted


@dataclass(frozen=True)
class Applied:
    schedule: Schedule
    version: ScheduleVersion
    change: Change


def get_schedule(tx: Transaction, tenant_id: str, name: str, *, is_locked: bool = False) -> Schedule:
    """Raises NotFound, also for another tenant's."""
    schedule = tx.schedules.named(tenant_id, name, is_locked=is_locked)
    if schedule is None:
        raise NotFound(f"No such Schedule object: {name}", param="name")
    return schedule


def checked_plan(
    new: NewPlan,
    tenant_id: str,
    submitter: Submitter,
    ceiling: PriorityClass,
    now: datetime,
    webhook_secret: str | None,
) -> NewPlan:
    """A plan that `check_plan` has passed, its job checked as it would be today. Raises InvalidRequest,
    naming the field.
    """
    spec = new.spec
    output = spec.output or ""
    for number, input in enumerate(spec.inputs):
        check_variables(input, f"job.input[{number}]" if spec.further_inputs else "job.input")
    if spec.output is not None:  # else the service keeps the results with the job
        check_output(output, "job.output", overwrite=new.plan.overwrite)
    for key, value in (spec.metadata or {}).items():
        check_variables(value, f"job.metadata.{key}")
    day = str(now.astimezone(zone_named(new.plan.time_zone)).date())
    earlier = replaced(output, _EARLIER)
    values = {DATE: day, RUN_ID: f"run_{'0' * SUFFIX_LENGTH}", PREVIOUS_OUTPUT: earlier}
    job = new_job(
        tenant_id, Face.NATIVE, with_values(spec, values), fingerprint=new.fingerprint, priority=new.priority
    )
    cron = new.plan.cron_at(now)
    try:
        if cron is not None:
            check_hours(job.spec, cron.first_after(now) or now)
        checked = submitter.check(job, ceiling, webhook_secret=webhook_secret)
    except InvalidRequest as error:
        raise of_job(error) from error
    return replace(new, webhook_secret=checked.webhook_secret)


def with_values(spec: JobSpec, values: Mapping[str, str]) -> JobSpec:
    """The job of a run, its variables replaced."""
    metadata = spec.metadata and {key: replaced(value, values) for key, value in spec.metadata.items()}
    first, *further = (replaced(input, values) for input in spec.inputs)
    output = None if spec.output is None else replaced(spec.output, values)
    return replace(spec, input=first, further_inputs=tuple(further), output=output, metadata=metadata)


def apply(
    tx: Transaction,
    new: NewPlan,
    tenant_id: str,
    key_id: str,
    submitter: Submitter,
    now: datetime,
    *,
    dry_run: bool = False,
) -> Applied:
    """Applies a checked plan on behalf of a key; the same plan again makes no new version. `dry_run` only
    reads.

    Raises InvalidRequest, UnknownModel, Conflict.
    """
    old = tx.schedules.named(tenant_id, new.plan.name, is_locked=not dry_run)
    if not dry_run:  # plans applied at once are counted, and make a circle, one by one
        tx.holdings.take_turn(tenant_id)  # after the schedule, as where a run's job is counted
    if old is not None:
        current = tx.schedules.version(old.id, old.version)
        if current.fingerprint == new.fingerprint:
            return _again(tx, old, current, key_id, dry_run=dry_run)
    _check_in(tx, new, tenant_id, submitter, now)
    if old is None and tx.schedules.count(tenant_id) >= submitter.settings.schedules_max:
        raise Conflict(
            f"There are {submitter.settings.schedules_max} schedules already, which is the most a tenant may "
            "have (NIGHTSHIFT_SCHEDULES_MAX).",
            code="too_many_schedules",
        )
    schedule = _scheduled(new, old, tenant_id, key_id, now)
    version = _version(new, schedule, now)
    if dry_run:
        return Applied(schedule, version, Change.CREATED if old is None else Change.UPDATED)
    if old is None:
        if not tx.schedules.insert(schedule):
            raise Conflict("A schedule of this name was created meanwhile. Apply the plan again.")
    else:
        tx.schedules.update(schedule)
        tx.schedules.delete_versions(schedule.id, schedule.version - VERSIONS_KEPT)
    tx.schedules.insert_version(version)
    return Applied(schedule, version, Change.CREATED if old is None else Change.UPDATED)


def _again(
    tx: Transaction, old: Schedule, current: ScheduleVersion, key_id: str, *, dry_run: bool
) -> Applied:
    """The same plan: only the key is another, perhaps instead of a revoked one."""
    if old.key_id != key_id and not dry_run:
        old = replace(old, key_id=key_id, problem=None)
        tx.schedules.update(old)
    return Applied(old, current, Change.UNCHANGED)


def _check_in(tx: Transaction, new: NewPlan, tenant_id: str, submitter: Submitter, now: datetime) -> None:
    """Checks what the database knows. Raises InvalidRequest, UnknownModel."""

    def after_of(name: str) -> str | None:
        other = tx.schedules.named(tenant_id, name)
        return None if other is None else other.after

    check_no_circle(new.plan, after_of)
    job = new_job(tenant_id, Face.NATIVE, new.spec, fingerprint=new.fingerprint)
    try:
        submitter.try_model(tx, job)
        submitter.try_file(tx, job, now)
    except InvalidRequest as error:
        raise of_job(error) from error


def _scheduled(new: NewPlan, old: Schedule | None, tenant_id: str, key_id: str, now: datetime) -> Schedule:
    """The schedule with its new plan. Of a changed one, what is under way goes on."""
    cron = new.plan.cron_at(now)
    schedule = old or Schedule(
        id=new_id("sched"),
        tenant_id=tenant_id,
        name=new.plan.name,
        version=0,
        after=None,
        key_id=key_id,
        created_at=now,
        updated_at=now,
    )
    is_due = schedule.next_at is not None and schedule.next_at <= now  # and about to be recorded
    if schedule.paused_at is not None or cron is None:
        next_at = None
    else:
        next_at = schedule.next_at if is_due else cron.first_after(now)
    return replace(
        schedule,
        version=schedule.version + 1,
        after=new.plan.after,
        key_id=key_id,
        updated_at=now,
        next_at=next_at,
        problem=None,
    )


def _version(new: NewPlan, schedule: Schedule, now: datetime) -> ScheduleVersion:
    return ScheduleVersion(
        schedule_id=schedule.id,
        version=schedule.version,
        created_at=now,
        key_id=schedule.key_id,
        fingerprint=new.fingerprint,
        plan=new.plan,
        job=new.job,
        webhook=new.webhook,
        spec=new.spec.to_json(),
        priority=new.priority,
        webhook_secret=new.webhook_secret,
    )


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
    cron = tx.schedules.version(schedule.id, schedule.version).plan.cron_at(now)
    resumed = replace(schedule, paused_at=None, next_at=None if cron is None else cron.first_after(now))
    tx.schedules.update(resumed)
    return resumed


def run_now(tx: Transaction, schedule: Schedule, now: datetime) -> Run:
    """Records a run of this very instant of a locked schedule, also of a paused one. The scheduler starts it.

    It follows no other plan's run, and none follows it. Raises Conflict.
    """
    plan = tx.schedules.version(schedule.id, schedule.version).plan
    under_way = tx.schedules.under_way(schedule.id)
    if under_way and plan.overlap is Overlap.SKIP:
        last = under_way[-1]
        raise Conflict(
            f"The run of {last.local_date} is under way ({last.job_id or last.id}), and 'overlap' is "
            '"skip". Wait for its end, or cancel its job.'
        )
    run = new_run(schedule, now, str(now.astimezone(zone_named(plan.time_zone)).date()), now)
    if not tx.schedules.insert_run(run):
        raise Conflict("There is a run of this instant. Try again.")
    return run


def new_run(schedule: Schedule, due_at: datetime, local_date: str, check_at: datetime) -> Run:
    """A run that waits until `check_at` at least."""
    return Run(
        id=new_id("run"),
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        version=schedule.version,
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
    if schedule.problem is not None or schedule.after is None:
        return schedule.problem
    if tx.schedules.named(schedule.tenant_id, schedule.after) is not None:
        return None
    message = f"It follows '{schedule.after}', which there is not: apply that plan, or change 'after'."
    return ScheduleProblem(AFTER_MISSING, message)


def shown_values(version: ScheduleVersion) -> dict[str, Any]:
    """The plan's fields as its owner reads them."""
    return version.plan.to_json() | {"job": version.job, "webhook": version.webhook}
