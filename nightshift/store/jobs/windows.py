"""Statements about the windows of jobs, and about whether they will be done in time. Of all tenants: the
scheduler's duties make them.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, func, select, update

from nightshift.jobs import Job, JobKind, Outlook
from nightshift.jobs.capacity.forecasts import Forecast, RunningJob
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.jobs.jobs import MAY_EXPIRE, to_job

job = tables.job

_RUNNING: Final = select(
    job.c.id,
    job.c.model,
    job.c.priority,
    job.c.deadline_at,
    job.c.window_turns_at,
    job.c.urgent_at,
    job.c.outlook,
    (
        func.coalesce(job.c.rows_total, job.c.rows_estimated, 0) - job.c.rows_succeeded - job.c.rows_failed
    ).label("rows_left"),
).where(
    job.c.kind == JobKind.BULK,
    *MAY_EXPIRE,
    job.c.paused_at.is_(None),
    job.c.planned_at.is_not(None),
    job.c.model.is_not(None),
)


class Windows(Statements):
    def turning(self, now: datetime, limit: int) -> Sequence[Job]:
        """Jobs whose window ends or opens by now, the first to do so first."""
        is_due = (job.c.window_turns_at.is_not(None), job.c.window_turns_at <= now)
        return self._all(select(job).where(*is_due).order_by(job.c.window_turns_at).limit(limit), to_job)

    def turn(self, before: Job, *, window_turns_at: datetime, paused_at: datetime | None) -> bool:
        """Begins or ends the pause between two nights. False: something else has changed it."""
        values: dict[str, Any] = {"window_turns_at": window_turns_at, "paused_at": paused_at}
        values |= {"outlook": None} if paused_at is None else {}
        is_as_before = job.c.window_turns_at == before.window_turns_at
        return self._update(before.id, is_as_before, urgent_at=None, **values)

    def running(self) -> Sequence[RunningJob]:
        """Planned bulk jobs that are neither paused nor stopping."""
        return self._all(_RUNNING, _to_running)

    def record(self, forecast: Forecast) -> bool:
        """Records from when a job is urgent, and what its owner is told. False: another scheduler did, it is
        over, or its window has turned.
        """
        told, urgent_at = forecast.job.outlook, forecast.job.urgent_at
        is_as_before = and_(
            job.c.outlook.is_not_distinct_from(told), job.c.urgent_at.is_not_distinct_from(urgent_at)
        )
        values = {"urgent_at": forecast.urgent_at, "outlook": forecast.outlook}
        return self._update(forecast.job.id, is_as_before, **values)

    def _update(self, job_id: str, guard: ColumnElement[bool], **values: Any) -> bool:
        return self._changes_one(update(job).where(job.c.id == job_id, *MAY_EXPIRE, guard).values(**values))


def _to_running(row: Row[Any]) -> RunningJob:
    return RunningJob(
        id=row.id,
        model=row.model,
        priority=PriorityClass(row.priority),
        rows_left=max(0, row.rows_left),
        deadline_at=row.deadline_at,
        closes_at=row.window_turns_at,
        urgent_at=row.urgent_at,
        outlook=Outlook(row.outlook) if row.outlook else None,
    )
