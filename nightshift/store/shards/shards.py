"""Statements that plan shards, list what workers produced, and end shards.

Every worker's write is guarded by its lease's term; `False` means that the lease is lost and the write is
void.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError

from nightshift.jobs import (
    Fault,
    InputError,
    Interruption,
    Job,
    JobKind,
    JobState,
    JsonObject,
    NewShard,
    RecordedAnswer,
    Segment,
    Shard,
    ShardObject,
    ShardState,
    Usage,
)
from nightshift.jobs.ids import new_ids
from nightshift.jobs.leases import Lease, Term
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.store.databases.multi_insert import PreparedRows
from nightshift.store.shards.cuts import note_ended

INSERT_ROWS_MAX: Final = 500  # rows of one statement


@dataclass(frozen=True)
class PreparedShards:
    """Claimable shards of a bulk job, as rows: other writers do not wait while these are made."""

    count: int
    rows: Sequence[PreparedRows]

    @classmethod
    def of_job(
        cls, dialect: str, job: Job, model: str, planned: Sequence[NewShard], now: datetime
    ) -> "PreparedShards":
        of_job = {
            "job_id": job.id,
            "tenant_id": job.tenant_id,
            "kind": JobKind.BULK,
            "model": model,
            "state": ShardState.QUEUED,
            "enqueued_at": now,
            "capacity": job.spec.capacity,
        }
        rows = [
            {
                **of_job,
                **vars(new),
                "id": shard_id,
                "objects": [[row.uri, row.etag] for row in new.objects] or None,
            }
            for shard_id, new in zip(new_ids("shard", len(planned)), planned, strict=True)
        ]
        pages = [rows[first : first + INSERT_ROWS_MAX] for first in range(0, len(rows), INSERT_ROWS_MAX)]
        return cls(len(rows), [PreparedRows(dialect, shard, page) for page in pages])


shard = tables.shard
segment = tables.segment
request = tables.request
result = tables.result

OPEN_SHARD_STATES = tuple(state for state in ShardState if not state.is_terminal)
STOPPED_MAX = 500  # shards in one transaction
RUNG_JOBS_MAX = 64  # bulk jobs looked at for shards without a ring: the most urgent with queued shards
RUNG_SHARDS_MAX = 64  # … of each

# Built once: a worker waits while SQLAlchemy builds a statement.

_INSERT_SEGMENT = insert(segment)

_CHECKPOINT = (  # a held shard's; a total and a carry-over of None stay as they are
    update(shard)
    .where(
        shard.c.id == bindparam("of"),
        shard.c.term == bindparam("held_term"),
        shard.c.state == ShardState.LEASED,
    )
    .values(
        tokens_in_flight=bindparam("in_flight"),
        fault=None,  # our store has taken it, and it has rows of the input
        rows_total=func.coalesce(bindparam("total", type_=BigInteger), shard.c.rows_total),
        carry_over_key=func.coalesce(bindparam("carry_over", type_=Text), shard.c.carry_over_key),
    )
)

_PROGRESS = _CHECKPOINT.values(
    rows_done=shard.c.rows_done + bindparam("rows"),
    result_bytes=shard.c.result_bytes + bindparam("bytes"),
    # Crashes stay: a finished row is cleared by itself, and the others may still be the cause.
    faults=0,
    attempts_before=shard.c.attempts - 1,  # progress restarts the count of attempts
)


TOLD_AT = func.coalesce(shard.c.signalled_at, shard.c.enqueued_at)

RUNG_JOBS = (
    select(tables.job.c.id, tables.job.c.priority_rank)
    .where(
        tables.job.c.kind == JobKind.BULK,
        tables.job.c.state.in_((JobState.QUEUED, JobState.RUNNING)),
        tables.job.c.paused_at.is_(None),
        select(shard.c.id)
        .where(shard.c.job_id == tables.job.c.id, shard.c.state == ShardState.QUEUED)
        .exists(),
    )
    .order_by(tables.job.c.priority_rank, tables.job.c.created_at)
    .limit(RUNG_JOBS_MAX)
)

_NEXT_OF_JOB = (
    select(shard.c.id, TOLD_AT.label("told_at"))
    .where(
        shard.c.job_id == bindparam("of"),
        shard.c.state == ShardState.QUEUED,
        or_(shard.c.not_before.is_(None), shard.c.not_before <= bindparam("moment")),
    )
    .order_by(shard.c.shard_no)
    .limit(RUNG_SHARDS_MAX)
    .subquery()
)
_UNRUNG_OF_JOB = select(_NEXT_OF_JOB.c.id).where(
    _NEXT_OF_JOB.c.told_at <= bindparam("told_until", type_=tables.UtcTimestamp)
)


class AlreadyListed(Exception):
    """The segment is listed: an earlier commit succeeded, and its answer was lost."""


@dataclass(frozen=True)
class ListedSegment:
    """A segment and its place in the job's order of commits, a cursor for partial results."""

    id: int
    shard_no: int
    segment: Segment


@dataclass(frozen=True)
class LeasedShard:
    """A shard that a worker holds."""

    shard: Shard
    worker_id: str
    lease_until: datetime


class Shards(Statements):
    # -- planning --------------------------------------------------------------------------------------

    def prepared(self, job: Job, model: str, planned: Sequence[NewShard], now: datetime) -> PreparedShards:
        """A bulk job's claimable shards, for `insert_bulk` in this or a later transaction."""
        return PreparedShards.of_job(self._connection.dialect.name, job, model, planned, now)

    def insert_bulk(self, prepared: PreparedShards) -> None:
        """Records a bulk job's claimable shards."""
        for rows in prepared.rows:
            rows.insert(self._connection)

    # -- writes under a lease --------------------------------------------------------------------------

    def list_segment(
        self,
        lease: Lease,
        new: Segment | None,
        *,
        rows_total: int | None,
        carry_over_key: str | None = None,
        tokens_in_flight: int = 0,
    ) -> bool:
        """Lists a stored segment, sets a stored carry-over, or both. False: the lease is lost, and the
        objects are garbage.

        Raises AlreadyListed. The caller adds the rows to the job (`jobs.add_progress`) in the same
        transaction.
        """
        values = {
            "of": lease.shard_id,
            "held_term": lease.term,
            "in_flight": tokens_in_flight,
            "total": rows_total,
            "carry_over": carry_over_key,
        }
        if new is None:
            return self._changes_one(_CHECKPOINT, values)
        holds = self._changes_one(_PROGRESS, {**values, "rows": new.rows, "bytes": new.size_bytes})
        if holds:
            self._insert_segment(lease, new)
        return holds

    def complete(self, lease: Lease, *, rows_total: int) -> bool:
        """Marks the shard done if the lease holds and every row is listed; else False."""
        note_ended(self._connection, lease.job_id)
        return self._update_held(
            lease,
            shard.c.rows_done == rows_total,
            state=ShardState.DONE,
            rows_total=rows_total,
            lease_until=None,
            fault=None,  # one told of as the last checkpoint was listed
        )

    def stop_held(self, lease: Lease) -> bool:
        """Ends a shard of a stopping job. Rows without a result get an error line at assembly."""
        note_ended(self._connection, lease.job_id)
        return self._update_held(lease, state=ShardState.STOPPED, lease_until=None)

    def fail_held(self, lease: Lease, fault: Fault | None = None) -> bool:
        """Gives a shard up: no worker can finish it. `fault`: of its input, if it is the reason."""
        note_ended(self._connection, lease.job_id)
        told = None if fault is None else fault.to_json()
        return self._update_held(lease, state=ShardState.FAILED, lease_until=None, fault=told)

    def record_fault(self, lease: Lease, fault: Fault | None) -> bool:
        """Records what the shard's work waits for at present. None: nothing. False: the lease is lost."""
        return self._update_held(lease, fault=None if fault is None else fault.to_json())

    def record_interruption(self, job_id: str, shard_no: int, ended: Interruption) -> None:
        """Records how a lease of a bulk shard ended that goes on, or is given up."""
        told = {"term": ended.term, "worker_id": ended.worker_id, "cause": ended.cause}
        self._execute(
            update(shard)
            .where(shard.c.job_id == job_id, shard.c.shard_no == shard_no)
            .values(interruption=told)
        )

    def record_result(self, lease: Lease, answer: RecordedAnswer) -> bool:
        """Records an online request's only answer. False: the lease is lost."""
        holds = self._update_held(lease, state=ShardState.DONE, rows_done=1, lease_until=None)
        if holds:
            values = {"shard_id": lease.shard_id, "status_code": answer.status_code, **vars(answer.usage)}
            self._execute(insert(result).values(values | {"body": self._as_json(answer.text)}))
        return holds

    # -- reading ---------------------------------------------------------------------------------------

    def of_job(self, job_id: str, *, after_no: int = -1, limit: int) -> Sequence[Shard]:
        """A page of a job's shards in input order."""
        return self._all(
            select(shard)
            .where(shard.c.job_id == job_id, shard.c.shard_no > after_no)
            .order_by(shard.c.shard_no)
            .limit(limit),
            to_shard,
        )

    def get(self, tenant_id: str, shard_id: str) -> Shard | None:
        """A shard of a tenant."""
        return self._one(
            select(shard).where(shard.c.id == shard_id, shard.c.tenant_id == tenant_id), to_shard
        )

    def request_body(self, tenant_id: str, shard_id: str) -> JsonObject | None:
        """A tenant's online request; None for a bulk shard."""
        body: JsonObject | None = self._execute(
            select(request.c.body)
            .join(shard, shard.c.id == request.c.shard_id)
            .where(request.c.shard_id == shard_id, shard.c.tenant_id == tenant_id)
        ).scalar_one_or_none()
        return body

    def states(self, job_id: str) -> Counter[ShardState]:
        """A job's shards per state."""
        rows = self._execute(
            select(shard.c.state, func.count()).where(shard.c.job_id == job_id).group_by(shard.c.state)
        )
        return Counter({ShardState(state): count for state, count in rows})

    def input_errors(self, job_id: str, limit: int) -> list[InputError]:
        """The reasons why the inputs of a job's first failed shards cannot be read."""
        rows = self._execute(
            select(shard.c.fault)
            .where(shard.c.job_id == job_id, text(tables.WITH_FAULT), shard.c.state == ShardState.FAILED)
            .order_by(shard.c.shard_no)
            .limit(limit)
        )
        return [Fault.from_json(row.fault).error for row in rows]

    def segments(self, shard_id: str) -> Sequence[Segment]:
        """A shard's listed segments, in the order of commits."""
        return self._all(
            select(segment).where(segment.c.shard_id == shard_id).order_by(segment.c.id), _to_segment
        )

    def segments_of_job(
        self, tenant_id: str, job_id: str, *, after_id: int = 0, limit: int
    ) -> Sequence[ListedSegment]:
        """A page of a tenant's job's listed segments, in the order of commits."""
        page = _listed(tenant_id, job_id).where(segment.c.id > after_id).order_by(segment.c.id)
        return self._all(page.limit(limit), _to_listed)

    def segments_with_failures(self, tenant_id: str, job_id: str, limit: int) -> Sequence[ListedSegment]:
        """The newest of a tenant's job's listed segments that have failed rows."""
        failed = _listed(tenant_id, job_id).where(text(f"segment.{tables.HAS_FAILURES}"))
        return self._all(failed.order_by(segment.c.id.desc()).limit(limit), _to_listed)

    def leased_of(self, tenant_id: str, job_id: str, limit: int) -> Sequence[LeasedShard]:
        """The first shards of a tenant's job that workers hold."""
        held = _held(tenant_id).where(shard.c.job_id == job_id)
        return self._all(held.order_by(shard.c.shard_no).limit(limit), _to_leased)

    def leased_by(self, tenant_id: str, worker_id: str, limit: int) -> Sequence[LeasedShard]:
        """Shards of a tenant that a worker holds."""
        return self._all(_held(tenant_id).where(shard.c.worker_id == worker_id).limit(limit), _to_leased)

    def online_result(self, tenant_id: str, job_id: str) -> RecordedAnswer | None:
        """The answer to a tenant's online job, if it has one."""
        row = self._execute(
            select(
                result.c.status_code,
                result.c.prompt_tokens,
                result.c.completion_tokens,
                result.c.cached_tokens,
                result.c.reasoning_tokens,
                cast(result.c.body, Text).label("text"),
            )
            .join(shard, shard.c.id == result.c.shard_id)
            .where(shard.c.job_id == job_id, shard.c.tenant_id == tenant_id)
        ).one_or_none()
        if row is None:
            return None
        return RecordedAnswer(row.status_code, row.text, from_row(Usage, row))

    def _as_json(self, text: str) -> ColumnElement[Any]:
        """JSON that is text already. SQLite stores it so; a cast there would make a number of it."""
        if self._connection.dialect.name == "postgresql":
            return cast(literal(text, Text()), JSON)
        return literal(text, Text())

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def stop_queued(self, job_id: str) -> int:
        """Stops queued shards of a stopping job, at most `STOPPED_MAX`. Returns how many."""
        is_queued = [shard.c.job_id == job_id, shard.c.state == ShardState.QUEUED]
        # The end of the range first: with it in a subquery PostgreSQL looks through all shards for each.
        end = (
            select(shard.c.shard_no).where(*is_queued).order_by(shard.c.shard_no).offset(STOPPED_MAX).limit(1)
        )
        end_no = self._connection.scalar(end)
        if end_no is not None:
            is_queued.append(shard.c.shard_no < end_no)
        ended = self._execute(update(shard).where(*is_queued).values(state=ShardState.STOPPED)).rowcount
        if ended:
            note_ended(self._connection, job_id, ended)
        return ended

    def has_open(self, job_id: str) -> bool:
        """Whether a shard of the job is queued or leased."""
        return self._count(job_id, OPEN_SHARD_STATES, limit=1) > 0

    def queued_of(self, job_id: str, limit: int) -> int:
        """Counts the queued shards of the job, up to `limit`."""
        return self._count(job_id, (ShardState.QUEUED,), limit)

    def _count(self, job_id: str, states: Sequence[ShardState], limit: int) -> int:
        shards = select(shard.c.id).where(shard.c.job_id == job_id, shard.c.state.in_(states)).limit(limit)
        counted: int = self._connection.scalar(select(func.count()).select_from(shards.subquery())) or 0
        return counted

    def unrung(
        self, now: datetime, ring_after: timedelta, *, kind: JobKind, limit: int
    ) -> Sequence[tuple[str, int]]:
        """Queued shards without a recent ring, as (shard id, class rank), best class first.

        The creator of a shard rings for it, so its creation counts as a ring. A bulk ring names no shard: of
        each bulk job only the next shards are looked at, however many it has.
        """
        if kind is JobKind.BULK:
            return self._unrung_bulk(now, now - ring_after, limit)
        rows = self._execute(
            select(shard.c.id, tables.job.c.priority_rank)
            .join(tables.job, tables.job.c.id == shard.c.job_id)
            .where(
                shard.c.state == ShardState.QUEUED,
                shard.c.kind == kind,
                or_(shard.c.not_before.is_(None), shard.c.not_before <= now),
                now - ring_after >= TOLD_AT,
            )
            .order_by(tables.job.c.priority_rank, shard.c.enqueued_at)
            .limit(limit)
        )
        return [(row.id, row.priority_rank) for row in rows]

    def _unrung_bulk(self, now: datetime, told_until: datetime, limit: int) -> Sequence[tuple[str, int]]:
        jobs = self._execute(RUNG_JOBS).all()
        unrung: list[tuple[str, int]] = []
        for job in jobs:
            values = {"of": job.id, "moment": now, "told_until": told_until}
            ids = self._connection.scalars(_UNRUNG_OF_JOB, values)
            unrung += [(id, job.priority_rank) for id in ids]
            if len(unrung) >= limit:
                break
        return unrung[:limit]

    def mark_signalled(self, shard_ids: Sequence[str], now: datetime) -> None:
        """Records that rings were sent. Locked shards are skipped: they are being claimed or stopped, and
        waiting could deadlock.
        """
        free = select(shard.c.id).where(shard.c.id.in_(shard_ids)).with_for_update(skip_locked=True)
        self._execute(update(shard).where(shard.c.id.in_(free)).values(signalled_at=now))

    def queued(self, *kinds: JobKind) -> dict[JobKind, int]:
        """Queued shards by kind, or of these kinds, without those of paused jobs: what workers are wanted
        for. Counts each.
        """
        paused = select(tables.job.c.id).where(
            tables.job.c.state.in_((JobState.QUEUED, JobState.RUNNING)),  # only these are paused
            tables.job.c.kind == JobKind.BULK,
            tables.job.c.paused_at.is_not(None),
        )
        rows = self._execute(
            select(shard.c.kind, func.count())
            .where(
                shard.c.state == ShardState.QUEUED,
                shard.c.kind.in_(kinds or tuple(JobKind)),
                shard.c.job_id.not_in(paused),
            )
            .group_by(shard.c.kind)
        )
        return {JobKind(kind): count for kind, count in rows}

    def _insert_segment(self, lease: Lease, new: Segment) -> None:
        values = vars(new) | vars(new.usage) | {"job_id": lease.job_id, "shard_id": lease.shard_id}
        del values["usage"]
        try:
            self._execute(_INSERT_SEGMENT, values)
        except IntegrityError as error:
            raise AlreadyListed(f"{new.key} is listed") from error

    def _update_held(self, lease: Lease, *guards: ColumnElement[bool], **values: Any) -> bool:
        """An UPDATE guarded by the lease's term."""
        return self._changes_one(
            update(shard)
            .where(
                shard.c.id == lease.shard_id,
                shard.c.term == lease.term,
                shard.c.state == ShardState.LEASED,
                *guards,
            )
            .values(**values)
        )


def to_shard(row: Row[Any]) -> Shard:
    return from_row(
        Shard,
        row,
        state=ShardState(row.state),
        term=Term(row.term),
        objects=tuple(ShardObject(uri, etag) for uri, etag in row.objects or ()),
        fault=None if row.fault is None else Fault.from_json(row.fault),
    )


def _to_segment(row: Row[Any]) -> Segment:
    return from_row(Segment, row, term=Term(row.term), usage=from_row(Usage, row))


def _listed(tenant_id: str, job_id: str) -> Select[Any]:
    joined = select(segment, shard.c.shard_no).join(shard, shard.c.id == segment.c.shard_id)
    return joined.where(segment.c.job_id == job_id, shard.c.tenant_id == tenant_id)


def _to_listed(row: Row[Any]) -> ListedSegment:
    return ListedSegment(row.id, row.shard_no, _to_segment(row))


def _held(tenant_id: str) -> Select[Any]:
    return select(shard).where(shard.c.tenant_id == tenant_id, shard.c.state == ShardState.LEASED)


def _to_leased(row: Row[Any]) -> LeasedShard:
    return LeasedShard(to_shard(row), row.worker_id, row.lease_until)
