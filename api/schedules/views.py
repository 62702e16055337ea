"""Schedules, their runs and their versions as answers show them."""

from collections.abc import Sequence
from datetime import datetime

from api.bodies.schedules import ScheduleRun, ScheduleVersionObject
from api.responses.times import seconds
from nightshift.errors import NotFound
from nightshift.jobs import JsonObject
from nightshift.lifecycle.schedules.changes import problem_of
from nightshift.schedules.plans import Schedule, ScheduleVersion
from nightshift.schedules.runs import Run
from nightshift.store import Transaction


def listed_json(tx: Transaction, schedules: Sequence[Schedule], now: datetime) -> list[JsonObject]:
    last_runs = tx.schedules.last_runs([schedule.id for schedule in schedules])
    return [_json(tx, schedule, last_runs.get(schedule.id), now) for schedule in schedules]


def described_json(tx: Transaction, schedule: Schedule, now: datetime) -> JsonObject:
    return listed_json(tx, [schedule], now)[0]


def _json(tx: Transaction, schedule: Schedule, last_run: Run | None, now: datetime) -> JsonObject:
    problem = problem_of(tx, schedule)
    return {
        "id": schedule.id,
        "object": "schedule",
        **schedule.current.shown(),
        "version": schedule.current.version,
        "created_at": seconds(schedule.created_at),
        "updated_at": seconds(schedule.current.created_at),
        "paused_at": seconds(schedule.paused_at),
        "next_runs": [seconds(instant) for instant in schedule.next_runs(now)],
        "last_run": None if last_run is None else run_json(schedule, last_run),
        "problem": None if problem is None else vars(problem),
    }


def run_json(schedule: Schedule, run: Run) -> JsonObject:
    return ScheduleRun.shown(run, object="schedule.run", schedule=schedule.name)


def version_json(schedule: Schedule, version: ScheduleVersion) -> JsonObject:
    """A version, with its number for an id: a list of them goes on after it."""
    number, plan = str(version.version), version.shown()
    return ScheduleVersionObject.shown(
        version, id=number, object="schedule.version", schedule=schedule.name, plan=plan
    )


def schedule_after(tx: Transaction, tenant_id: str, id: str) -> Schedule:
    """The last schedule of a page of them. Raises NotFound."""
    schedule = tx.schedules.get(tenant_id, id)
    if schedule is None:
        raise NotFound(f"No such Schedule object: {id}", param="after")
    return schedule


def run_after(tx: Transaction, schedule: Schedule, id: str) -> Run:
    """The last run of a page of a schedule's. Raises NotFound."""
    run = tx.schedules.run(schedule.tenant_id, id)
    if run is None or run.schedule_id != schedule.id:
        raise NotFound(f"No such run of '{schedule.name}': {id}", param="after")
    return run
