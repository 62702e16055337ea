"""Statements that delete ended jobs and parts of them: first what makes a part unreachable, with a record of
what is still to be deleted; then the rows, in batches.

A job is locked before what belongs to it, so that nothing new of it is recorded meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Table, delete, func, insert, select, update

from nightshift.jobs import JobKind, JobState
from nightshift.jobs.files import Deletion, JobPart
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.databases.planner_hints import unindexed
from nightshift.store.tenants.holdings import Holdings
from nightshift.tenants.holdings import Holding

job = tables.job
shard = tables.shard
event = tables.event
delivery = tables.delivery
deletion = tables.deletion

ENDED_STATES = tuple(state for state in JobState if state.is_terminal)

LATE_MAX: Final = 1000  # deliveries that were recorded after a job's were deleted

_OF_SHARD = (tables.request, tables.result, tables.row_crash, tables.dead_row)
_OF_JOB = (tables.dead_row, tables.idempotency, tables.event, tables.output_part)
DELETED_AT: Final[Mapping[JobPart, Column[Any]]] = {
    JobPart.RESULTS: job.c.results_deleted_at,
    JobPart.EVENTS: job.c.events_deleted_at,
    JobPart.JOB: job.c.deleted_at,
}


class Deletions(Statements):
    def __init__(self, connection: Connection, holdings: Holdings) -> None:
        super().__init__(connection)
        self._holdings = holdings

    # -- what makes a part unreachable -----------------------------------------------------------------

    def lock_ended(self, job_ids: Collection[str]) -> Sequence[str]:
        """The jobs among these that have ended and are not deleted; locked until this transaction ends. One
        that another transaction has locked is left out.
        """
        wanted = select(job.c.id).where(job.c.id.in_(job_ids), *_ENDED)
        return self._execute(wanted.with_for_update(skip_locked=True)).scalars().all()

    def mark_deleted(self, tenant_id: str, job_id: str, now: datetime) -> bool:
        """Lets the job be found no more. False: it has not ended, or was deleted."""
        return bool(self._mark([job_id], JobPart.JOB, now, job.c.tenant_id == tenant_id))

    def mark(self, job_ids: Collection[str], part: JobPart, now: datetime) -> Sequence[tuple[str, str]]:
        """Lets this part of ended jobs be found no more. Returns tenant and id of those that had it."""
        return self._mark(job_ids, part, now)

    def record(self, marked: Collection[tuple[str, str]], part: JobPart, now: datetime) -> None:
        """Records that this part of these jobs (tenant, id) is still to be deleted."""
        if marked:
            rows = [
                {"tenant_id": tenant_id, "job_id": job_id, "part": part, "recorded_at": now}
                for tenant_id, job_id in marked
            ]
            self._execute(insert(deletion), rows)

    # -- what is still to be deleted, over all tenants -------------------------------------------------

    def tenants(self) -> Sequence[str]:
        """Tenants with anything still to be deleted."""
        return distinct_tenants(self._connection, deletion)

    def waiting(self, tenant_id: str, limit: int, after_id: int = 0) -> Sequence[Deletion]:
        """A page of a tenant's, the first recorded first."""
        rows = self._execute(
            select(deletion)
            .where(deletion.c.tenant_id == tenant_id, deletion.c.id > after_id)
            .order_by(deletion.c.id)
            .limit(limit)
        )
        return [Deletion(row.id, row.tenant_id, row.job_id, JobPart(row.part)) for row in rows]

    def finish(self, done: Deletion) -> None:
        """The part's rows and bytes are gone: delete the job where it was the whole, and the record."""
        if done.part is JobPart.JOB:
            # Locked first, so that nothing more of it comes: no row may name it when it goes.
            wanted = (job.c.id == done.job_id) & job.c.deleted_at.is_not(None)
            self._execute(select(job.c.id).where(wanted).with_for_update())
            self.delete_deliveries([done.job_id], LATE_MAX)
            for table in _OF_JOB:
                self._execute(delete(table).where(_of_job(table, done)))
            self._count_deleted([done.job_id])
            self._execute(delete(job).where(wanted))
        self._execute(delete(deletion).where(deletion.c.id == done.id))

    def streamed(self, job_ids: Collection[str]) -> Sequence[str]:
        """Ids of the online shards of these jobs, whose tokens may still be in Redis."""
        is_online = shard.c.job_id.in_(job_ids) & (shard.c.shard_no == 0) & (shard.c.kind == JobKind.ONLINE)
        return self._execute(select(shard.c.id).where(is_online)).scalars().all()

    # -- rows, in batches ------------------------------------------------------------------------------

    def delete_segments(self, part: Deletion, limit: int) -> int:
        """Deletes segments and stops counting their bytes. Returns their number."""
        segment = tables.segment
        page = select(segment.c.id).where(_of_job(segment, part)).order_by(segment.c.id).limit(limit)
        gone = delete(segment).where(_of_job(segment, part), segment.c.id.in_(page.scalar_subquery()))
        sizes = self._execute(gone.returning(segment.c.size_bytes)).scalars().all()
        if sizes:
            less = {"stored_bytes": job.c.stored_bytes - sum(sizes)}
            self._execute(update(job).where(job.c.id == part.job_id).values(less))
            self._holdings.add(part.tenant_id, Holding(stored_bytes=-sum(sizes)))
        return len(sizes)

    def delete_events(self, part: Deletion, limit: int) -> int:
        """All, or all but the last of a job that stays. Returns how many."""
        wanted = _of_job(event, part)
        if part.part is not JobPart.JOB:
            last = select(job.c.event_seq).where(job.c.id == part.job_id).scalar_subquery()
            wanted &= event.c.seq < last
        return self._delete_some(event, event.c.seq, wanted, limit)

    def delete_shards(self, part: Deletion, limit: int) -> int:
        """Shards without segments, and what is theirs. Returns how many."""
        page = select(shard.c.id).where(_of_job(shard, part)).order_by(shard.c.shard_no).limit(limit)
        ids = self._execute(page).scalars().all()
        for table in _OF_SHARD if ids else ():
            self._execute(delete(table).where(table.c.shard_id.in_(ids)))
        return self._execute(delete(shard).where(shard.c.id.in_(ids))).rowcount if ids else 0

    def delete_output_parts(self, part: Deletion, limit: int) -> int:
        """Returns how many."""
        wanted = _of_job(tables.output_part, part)
        return self._delete_some(tables.output_part, tables.output_part.c.first_shard, wanted, limit)

    def delete_deliveries(self, job_ids: Collection[str], limit: int) -> int:
        """Deliveries and their attempts. Returns how many deliveries."""
        return self._delete_deliveries(delivery.c.job_id.in_(job_ids), limit)

    def delete_ended_deliveries(self, tenant_id: str, until: datetime, limit: int) -> int:
        """A tenant's deliveries of events until then that are owed no more. Returns how many."""
        of_tenant = (delivery.c.tenant_id == tenant_id) & (delivery.c.created_at <= until)
        return self._delete_deliveries(of_tenant & (delivery.c.state != DeliveryState.PENDING), limit)

    def delete_gone_receivers(self, tenant_id: str, limit: int) -> int:
        """A tenant's records of receivers that refuse the events of jobs which are all deleted. How many."""
        gone = tables.gone_endpoint
        concerned = select(job.c.id).where(job.c.tenant_id == tenant_id, job.c.created_at <= gone.c.gone_at)
        wanted = (gone.c.tenant_id == tenant_id) & ~concerned.exists()
        return self._delete_some(gone, gone.c.url_sha256, wanted, limit)

    def delete_dead_letters(self, job_id: str) -> None:
        self._execute(delete(tables.dead_row).where(tables.dead_row.c.job_id == job_id))

    def delete_key(self, job_id: str) -> None:
        """Forgets the Idempotency-Key that made this job."""
        self._execute(delete(tables.idempotency).where(tables.idempotency.c.job_id == job_id))

    # -- online jobs, which have few rows each ---------------------------------------------------------

    def delete_online(self, job_ids: Collection[str]) -> int:
        """Locked online jobs and all that belongs to them. Returns how many."""
        shards = select(shard.c.id).where(shard.c.job_id.in_(job_ids)).scalar_subquery()
        for table in _OF_SHARD:
            self._execute(delete(table).where(table.c.shard_id.in_(shards)))
        self.delete_deliveries(job_ids, limit=len(job_ids) * 100)
        for table in (*_OF_JOB, shard):
            self._execute(delete(table).where(table.c.job_id.in_(job_ids)))
        self._count_deleted(job_ids)
        return self._execute(delete(job).where(job.c.id.in_(job_ids))).rowcount

    def delete_bodies(self, job_ids: Collection[str]) -> None:
        """Requests and answers of online jobs, and the keys that would repeat the answers."""
        shards = select(shard.c.id).where(shard.c.job_id.in_(job_ids)).scalar_subquery()
        for table in (tables.request, tables.result):
            self._execute(delete(table).where(table.c.shard_id.in_(shards)))
        keys = tables.idempotency
        self._execute(delete(keys).where(keys.c.job_id.in_(job_ids)))
        self._count_deleted(job_ids)
        self._execute(update(job).where(job.c.id.in_(job_ids)).values(stored_bytes=0))

    def delete_events_but_last(self, job_ids: Collection[str]) -> None:
        last = select(job.c.event_seq).where(job.c.id == event.c.job_id).scalar_subquery()
        self._execute(delete(event).where(event.c.job_id.in_(job_ids), event.c.seq < last))

    # --------------------------------------------------------------------------------------------------

    def _count_deleted(self, job_ids: Collection[str]) -> None:
        """Stops counting, for their tenants, what is stored of these locked jobs."""
        stored = select(job.c.tenant_id, func.sum(job.c.stored_bytes)).where(job.c.id.in_(job_ids))
        for tenant_id, stored_bytes in self._execute(stored.group_by(job.c.tenant_id)):
            self._holdings.add(tenant_id, Holding(stored_bytes=-int(stored_bytes)))

    def _mark(
        self, job_ids: Collection[str], part: JobPart, now: datetime, *guards: ColumnElement[bool]
    ) -> Sequence[tuple[str, str]]:
        column = DELETED_AT[part]
        rows = self._execute(
            update(job)
            .where(job.c.id.in_(job_ids), *_ENDED, column.is_(None), *guards)
            .values({column: now})
            .returning(job.c.tenant_id, job.c.id)
        )
        return [(row.tenant_id, row.id) for row in rows]

    def _delete_deliveries(self, wanted: ColumnElement[bool], limit: int) -> int:
        page = select(delivery.c.id).where(wanted).limit(limit)
        # Locked first: an attempt that is being recorded comes before or not at all.
        ids = self._execute(page.with_for_update()).scalars().all()
        if not ids:
            return 0
        attempt = tables.delivery_attempt
        self._execute(delete(attempt).where(attempt.c.delivery_id.in_(ids)))
        return self._execute(delete(delivery).where(delivery.c.id.in_(ids))).rowcount

    def _delete_some(self, table: Table, key: Column[Any], wanted: ColumnElement[bool], limit: int) -> int:
        page = select(key).where(wanted).order_by(key).limit(limit).scalar_subquery()
        return self._execute(delete(table).where(wanted, key.in_(page))).rowcount


# Of jobs that are named: SQLite would rather look through all that have ended than for a hundred ids.
_ENDED = (unindexed(job.c.state).in_(ENDED_STATES), job.c.deleted_at.is_(None))


def _of_job(table: Table, deletion: Deletion) -> ColumnElement[bool]:
    return table.c.job_id == deletion.job_id


def distinct_tenants(connection: Connection, table: Table) -> Sequence[str]:
    """Tenants with rows in a table, in alphabetical order. `SELECT DISTINCT` would read the whole table; this
    reads an index that begins with the tenant.
    """
    column = table.c.tenant_id
    tenants = select(func.min(column).label("tenant_id")).cte("found", recursive=True)
    following = select(func.min(column)).where(column > tenants.c.tenant_id).scalar_subquery()
    tenants = tenants.union_all(select(following).where(tenants.c.tenant_id.is_not(None)))
    rows = connection.execute(select(tenants.c.tenant_id).where(tenants.c.tenant_id.is_not(None)))
    return rows.scalars().all()
