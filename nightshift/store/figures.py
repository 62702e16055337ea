"""Statements about the service's figures over time, and about all that waits for workers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    case,
    delete,
    func,
    insert,
    literal_column,
    select,
    type_coerce,
)

from nightshift.fleet.figures import INTERVAL_S, ServiceFigures
from nightshift.jobs import JobKind, JobState, ShardState
from nightshift.jobs.capacity.backlog import WaitingJob
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements

job = tables.job
shard = tables.shard
service_figure = tables.service_figure

RUNNABLE: Final = (JobState.QUEUED, JobState.RUNNING)


_CLASSES: Final = {priority.value: priority for priority in PriorityClass}


class Figures(Statements):
    def record(self, figures: ServiceFigures) -> None:
        """Records figures once for a time: of two schedulers that both record one, the first counts."""
        known = select(service_figure.c.at).where(service_figure.c.at == figures.at)
        if self._execute(known).one_or_none() is None:
            values = {"at": figures.at, "figures": figures.to_json()}
            self._execute(insert(service_figure).values(**values))

    def latest(self) -> ServiceFigures | None:
        rows = select(service_figure).order_by(service_figure.c.at.desc()).limit(1)
        return self._one(rows, _to_figures)

    def since(self, at: datetime, limit: int, *, every: int = 1) -> Sequence[ServiceFigures]:
        """The figures after that time, the oldest first; about one of `every` so many, at equal distances."""
        interval_no = type_coerce(service_figure.c.at, BigInteger) // int(1000 * INTERVAL_S)
        rows = (
            select(service_figure)
            .where(service_figure.c.at > at, interval_no % every == 0)
            .order_by(service_figure.c.at)
            .limit(limit)
        )
        return self._all(rows, _to_figures)

    def forget(self, before: datetime, limit: int) -> int:
        """Deletes the oldest from before then. Returns how many."""
        old = select(service_figure.c.at).where(service_figure.c.at < before)
        page = old.order_by(service_figure.c.at).limit(limit).scalar_subquery()
        return self._execute(delete(service_figure).where(service_figure.c.at.in_(page))).rowcount

    def waiting(self) -> Sequence[WaitingJob]:
        """Every unfinished bulk job, and all online requests in a few groups. Of shards, and of unclaimed
        requests, only index entries are read.
        """
        return [*self._bulk(), *self._online()]

    def _bulk(self) -> list[WaitingJob]:
        leased = {row.job_id: row.shards for row in self._execute(_BULK_LEASED)}
        waiting = []
        for row in self._execute(_BULK):  # taken apart at once: there may be thousands
            (
                id,
                model,
                priority,
                capacity,
                pool,
                created_at,
                due_at,
                paused_at,
                queued,
                left,
                done,
                turns_at,
            ) = row
            if turns_at is not None and paused_at is None:
                due_at = min(due_at, turns_at)  # the end of tonight's window
            waiting.append(
                WaitingJob(
                    kind=JobKind.BULK,
                    model=model or "",
                    priority=_CLASSES[priority],
                    capacity=capacity,
                    created_at=created_at,
                    deadline_at=due_at,
                    queued=queued,
                    leased=leased.get(id, 0),
                    rows_left=max(0, left),
                    rows_done=done,
                    is_paused=paused_at is not None,
                    pool=pool,
                )
            )
        return waiting

    def _online(self) -> list[WaitingJob]:
        return [
            WaitingJob(
                kind=JobKind.ONLINE,
                model=row.model or "",
                priority=PriorityClass(row.priority),
                capacity=row.capacity,
                created_at=row.created_at,
                deadline_at=row.deadline_at,
                queued=int(row.queued),
                leased=int(row.leased),
                rows_left=int(row.queued) + int(row.leased),
            )
            for statement in (_ONLINE_UNCLAIMED, _ONLINE_CLAIMED)
            for row in self._execute(statement)
        ]


_ROWS_DONE: Final = job.c.rows_succeeded + job.c.rows_failed

_BULK: Final = select(
    job.c.id,
    job.c.model,
    job.c.priority,
    job.c.capacity,
    job.c.pool,
    job.c.created_at,
    job.c.deadline_at,
    job.c.paused_at,
    # Counted in the index that claims use.
    select(func.count())
    .where(shard.c.job_id == job.c.id, shard.c.state == ShardState.QUEUED)
    .correlate(job)
    .scalar_subquery()
    .label("queued"),
    (func.coalesce(job.c.rows_total, job.c.rows_estimated, 0) - _ROWS_DONE).label("rows_left"),
    _ROWS_DONE.label("rows_done"),
    job.c.window_turns_at,
).where(job.c.kind == JobKind.BULK, job.c.state.in_(RUNNABLE))

_BULK_LEASED: Final = (  # few, however much is queued
    select(shard.c.job_id, func.count().label("shards"))
    .where(shard.c.state == ShardState.LEASED, shard.c.kind == JobKind.BULK)
    .group_by(shard.c.job_id)
)

_OF_ONLINE: Final = (job.c.model, job.c.priority, job.c.capacity)
_TIMES: Final = (
    func.min(job.c.created_at).label("created_at"),
    func.min(job.c.deadline_at).label("deadline_at"),
)

# Their conditions are written out: only so SQLite sees that the index with all they need is the right one.
_UNCLAIMED: Final[ColumnElement[bool]] = literal_column("job.kind = 'online' AND job.state = 'queued'")
_CLAIMED: Final[ColumnElement[bool]] = literal_column("job.kind = 'online' AND job.state = 'running'")

_ONLINE_UNCLAIMED: Final = (
    select(*_OF_ONLINE, *_TIMES, func.count().label("queued"), literal_column("0").label("leased"))
    .where(_UNCLAIMED)
    .group_by(*_OF_ONLINE)
)

# Of those that a worker has had, some are queued again: its shard says.
_ONLINE_CLAIMED: Final = (
    select(
        *_OF_ONLINE,
        *_TIMES,
        func.sum(case((shard.c.state == ShardState.QUEUED, 1), else_=0)).label("queued"),
        func.sum(case((shard.c.state == ShardState.LEASED, 1), else_=0)).label("leased"),
    )
    .join(shard, shard.c.job_id == job.c.id)
    .where(_CLAIMED)
    .group_by(*_OF_ONLINE)
)


def _to_figures(row: Row[Any]) -> ServiceFigures:
    return ServiceFigures.from_json(row.at, row.figures)
