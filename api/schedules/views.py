"""Schedules, their runs and their versions as answers show them."""

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from api.bodies.schedules import ScheduleRun, ScheduleVersionObject
from api.responses.times import seconds
from nightshift.jobs import JsonObject
from nightshift.lifecycle.schedules.changes import Applied, problem_of, shown_values
from nightshift.schedules.plans import Schedule, ScheduleVersion
from nightshift.schedules.runs import Run
from nightshift.store import Transaction

NEXT_RUNS: Final = 3


def listed_json(tx: Transaction, schedules: Sequence[Schedule], now: datetime) -> list[JsonObject]:
    last_runs = tx.schedules.last_runs([schedule.id for schedule in schedules])
    return [
        _json(
            tx,
            schedule,
            tx.schedules.version(schedule.id, schedule.version),
            last_runs.get(schedule.id),
            now,
        )
        for schedule in schedules
    ]


def described_json(tx: Transaction, schedule: Schedule, now: datetime) -> JsonObject:
    return listed_json(tx, [schedule], now)[0]


def applied_json(tx: Transaction, applied: Applied, now: datetime) -> JsonObject:
    schedule = applied.schedule
    last_run = tx.schedules.last_runs([schedule.id]).get(schedule.id)
    return _json(tx, schedule, applied.version, last_run, now) | {"change": applied.change}


def _json(
    tx: Transaction, schedule: Schedule, version: ScheduleVersion, last_run: Run | None, now: datetime
) -> JsonObject:
    problem = problem_of(tx, schedule)
    return {
        "id": schedule.id,
        "object": "schedule",
        **shown_values(version),
        "version": schedule.version,
        "created_at": seconds(schedule.created_at),
        "updated_at": seconds(schedule.updated_at),
        "paused_at": seconds(schedule.paused_at),
        "next_runs": _next_runs(schedule, version, now),
        "last_run": None if last_run is None else run_json(schedule, last_run),
        "problem": None if problem is None else vars(problem),
    }


def _next_runs(schedule: Schedule, version: ScheduleVersion, now: datetime) -> list[int]:
    cron = None if schedule.next_at is None else version.plan.cron_at(now)
    return [] if cron is None else [seconds(instant) for instant in islice(cron.after(now), NEXT_RUNS)]


def run_json(schedule: Schedule, run: Run) -> JsonObject:
    return ScheduleRun.shown(run, object="schedule.run", schedule=schedule.name)


def version_json(schedule: Schedule, version: ScheduleVersion) -> JsonObject:
    """A version, with its number for an id: a list of them goes on after it."""
    return ScheduleVersionObject.shown(
        version,
        id=str(version.version),
        object="schedule.version",
        schedule=schedule.name,
        plan=shown_values(version),
    )
