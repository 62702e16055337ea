"""Work for the scheduler's duties, and from when: one statement for all of them.

It says what is so, and decides nothing: how long a ring may take, or a worker may be silent, the duties say.
Each of its answers is found by an index, and by few rows of tables that may be large.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Select,
    TextClause,
    TextualSelect,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    text,
)

from nightshift.jobs import Face, JobKind, JobState, ShardState
from nightshift.outbound.webhook_events import PROGRESS
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.jobs.jobs import MAY_EXPIRE, PAST_LIMITS, STOPPING, TO_FINALIZE, UNPLANNED
from nightshift.store.shards.cuts import WITH_PARTS, OutputProgress
from nightshift.store.shards.parts import LEASED, WITH_PROBLEM, WRITING_STATES, claimable
from nightshift.store.shards.shards import RUNG_JOBS, RUNG_SHARDS_MAX, TOLD_AT

job = tables.job
shard = tables.shard
part = tables.output_part
delivery = tables.delivery


@dataclass(frozen=True)
class OutputTotals:
    """Sums over the native jobs whose output is being written. Where one differs from what it was, there may
    be something to cut or to list.
    """

    jobs: int = 0
    running: int = 0
    complete: int = 0  # there will be no more shards
    shards_ended: int = 0
    parts_written: int = 0

    @classmethod
    def from_progress(cls, under_way: Iterable[OutputProgress]) -> "OutputTotals":
        jobs_under_way = list(under_way)
        return cls(
            jobs=len(jobs_under_way),
            running=sum(job.is_running for job in jobs_under_way),
            complete=sum(job.is_complete for job in jobs_under_way),
            shards_ended=sum(job.shards_ended for job in jobs_under_way),
            parts_written=sum(job.parts_written for job in jobs_under_way),
        )


@dataclass(frozen=True, kw_only=True)
class PendingWork:
    """The work that was pending at `at`, by the database's clock. A time of None: there is no such thing."""

    at: datetime
    is_unplanned: bool = False  # a bulk job, at least in part
    is_to_finalize: bool = False  # a job all of whose shards have ended
    is_finalizing: bool = False  # a job whose output is being put together
    is_stopping: bool = False  # a job that was told to stop and has not ended
    is_past_limit: bool = False  # a job, perhaps
    is_deleting: bool = False  # there are rows or bytes of deleted jobs
    is_online_queued: bool = False
    first_deadline_at: datetime | None = None  # end of a job's window
    first_runtime_deadline_at: datetime | None = None
    first_window_turns_at: datetime | None = None  # end or opening of a job's window
    first_lease_ends_at: datetime | None = None  # end of a shard's lease
    ring_owed_since: datetime | None = None  # the oldest in the outbox
    bulk_told_at: datetime | None = None  # when the shard next in line was rung for that was so longest ago
    bulk_delayed_until: datetime | None = None  # the first of the shards next in line that must still wait
    next_delivery_at: datetime | None = None  # any event but progress
    next_progress_at: datetime | None = None  # events of progress
    next_instant_at: datetime | None = None  # of a schedule, not recorded yet
    next_run_check_at: datetime | None = None  # when a schedule's run is to be looked at
    first_part_lease_ends_at: datetime | None = None
    is_part_claimable: bool = False
    part_delayed_until: datetime | None = None  # the first of those that cannot be written at present
    has_part_problem: bool = False  # a running job's, which may be permanent
    output: OutputTotals = OutputTotals()

    @property
    def has_job(self) -> bool:
        """Whether a job has not ended."""
        return self.first_deadline_at is not None or self.is_stopping or self.is_finalizing


class Pending(Statements):
    def work(self, now: datetime) -> PendingWork:
        statement = _rendered(self._connection.dialect)
        row = self._execute(statement, {"moment": now}).one()._mapping
        totals = OutputTotals(**{name: int(row[f"output_{name}"]) for name in _TOTALS})
        return PendingWork(at=now, output=totals, **{name: row[name] for name in _FACTS})


_TOTALS: Final = tuple(field.name for field in fields(OutputTotals))
_NOW: ColumnElement[datetime] = literal_column(":moment", tables.UtcTimestamp)


_Condition = ColumnElement[bool] | TextClause


def _any(*conditions: _Condition) -> ColumnElement[bool]:
    return exists().where(*conditions)


def _first(time: ColumnElement[Any], *conditions: _Condition) -> ColumnElement[datetime | None]:
    return select(func.min(time)).where(*conditions).scalar_subquery()


def _next_delivery(is_wanted: ColumnElement[bool]) -> ColumnElement[datetime | None]:
    """The first time in the index's order, where the search ends at the first wanted delivery."""
    pending = select(delivery.c.next_at).where(delivery.c.state == DeliveryState.PENDING, is_wanted)
    return pending.order_by(delivery.c.next_at).limit(1).scalar_subquery()


def _of_next_shards(
    time: ColumnElement[Any], is_wanted: ColumnElement[bool]
) -> ColumnElement[datetime | None]:
    """The first time among the shards that ringing looks at."""
    jobs = RUNG_JOBS.subquery()
    in_line = (
        select(time.label("time"))
        .where(shard.c.job_id == jobs.c.id, shard.c.state == ShardState.QUEUED, is_wanted)
        .order_by(shard.c.shard_no)
        .limit(RUNG_SHARDS_MAX)
        .correlate(jobs)
        .subquery()
    )
    of_job = select(func.min(in_line.c.time)).correlate(jobs).scalar_subquery()
    return select(func.min(of_job)).select_from(jobs).scalar_subquery()


def _totals() -> Select[Any]:
    def count(is_so: ColumnElement[bool]) -> ColumnElement[int]:
        return func.coalesce(func.sum(case((is_so, 1), else_=0)), 0)

    return select(
        func.count().label("output_jobs"),
        count(job.c.state == JobState.RUNNING).label("output_running"),
        count(or_(job.c.planned_at.is_not(None), job.c.stop_reason.is_not(None))).label("output_complete"),
        func.coalesce(func.sum(job.c.shards_ended), 0).label("output_shards_ended"),
        func.coalesce(func.sum(job.c.parts_written), 0).label("output_parts_written"),
    ).where(job.c.kind == JobKind.BULK, job.c.face == Face.NATIVE, job.c.state.in_(WITH_PARTS))


_READY_YET = or_(shard.c.not_before.is_(None), shard.c.not_before <= _NOW)
_OF_WRITING_JOB = and_(part.c.job_id == job.c.id, job.c.kind == JobKind.BULK, job.c.state.in_(WRITING_STATES))
_OF_RUNNING_JOB = and_(
    part.c.job_id == job.c.id,
    job.c.kind == JobKind.BULK,
    job.c.state == JobState.RUNNING,
    job.c.stop_reason.is_(None),
)

_FACTS: Final[dict[str, ColumnElement[Any]]] = {
    "is_unplanned": _any(*UNPLANNED),
    "is_to_finalize": _any(*TO_FINALIZE),
    "is_finalizing": _any(job.c.state == JobState.FINALIZING),
    "is_stopping": _any(*STOPPING),
    "is_past_limit": _any(*PAST_LIMITS),
    "is_deleting": _any(tables.deletion.c.id.is_not(None)),
    "is_online_queued": _any(shard.c.state == ShardState.QUEUED, shard.c.kind == JobKind.ONLINE),
    "first_deadline_at": _first(job.c.deadline_at, *MAY_EXPIRE),
    "first_runtime_deadline_at": _first(job.c.runtime_deadline_at, *MAY_EXPIRE),
    "first_window_turns_at": _first(job.c.window_turns_at, job.c.window_turns_at.is_not(None)),
    "first_lease_ends_at": _first(shard.c.lease_until, shard.c.state == ShardState.LEASED),
    "ring_owed_since": _first(tables.outbox.c.created_at),
    "bulk_told_at": _of_next_shards(TOLD_AT, _READY_YET),
    "bulk_delayed_until": _of_next_shards(shard.c.not_before, not_(_READY_YET)),
    "next_delivery_at": _next_delivery(delivery.c.event_type != PROGRESS),
    "next_progress_at": _next_delivery(delivery.c.event_type == PROGRESS),
    "next_instant_at": _first(tables.schedule.c.next_at, text(tables.IS_DUE)),
    "next_run_check_at": _first(tables.schedule_run.c.check_at, text(tables.IS_CHECKED)),
    "first_part_lease_ends_at": _first(part.c.lease_expires_at, LEASED),
    "is_part_claimable": _any(_OF_WRITING_JOB, *claimable(_NOW)),
    "part_delayed_until": _first(part.c.not_before, _OF_WRITING_JOB, WITH_PROBLEM, part.c.not_before > _NOW),
    "has_part_problem": _any(_OF_RUNNING_JOB, WITH_PROBLEM),
}


@cache
def _rendered(dialect: Dialect) -> TextualSelect:
    """The statement with its values in it. With parameters SQLite would prepare it anew at every call, in
    2 ms: they might decide about the use of a partial index.
    """
    totals = _totals().subquery()
    whole = select(totals, *(fact.label(name) for name, fact in _FACTS.items()))
    words = str(whole.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    moment = bindparam("moment", type_=tables.UtcTimestamp)
    return text(words).bindparams(moment).columns(*whole.selected_columns)
