"""Statements about waiting work, for admission and for an idle scheduler."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, exists, func, or_, select

from nightshift.jobs import JobKind, JobState, ShardState
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables

job = tables.job
shard = tables.shard

_UNFINISHED = tuple(state for state in JobState if not state.is_terminal)

_ONLINE = select(  # built once: a request waits while SQLAlchemy builds it
    func.count().filter(shard.c.tenant_id == bindparam("tenant")),
    func.count(),
    func.count(shard.c.tenant_id.distinct()),
).where(shard.c.state.in_((ShardState.QUEUED, ShardState.LEASED)), shard.c.kind == JobKind.ONLINE)

# Only these give the scheduler's duties work.
_PENDING_WORK = select(
    or_(
        exists().where(job.c.state.in_(_UNFINISHED)),
        exists().where(tables.outbox.c.id.is_not(None)),
    ),
    select(func.min(tables.delivery.c.next_at))
    .where(tables.delivery.c.state == DeliveryState.PENDING)
    .scalar_subquery(),
)


@dataclass(frozen=True)
class OnlineLoad:
    """Unanswered online requests."""

    own: int  # the tenant's
    total: int  # all tenants'
    tenants: int  # with any


@dataclass(frozen=True)
class BulkLoad:
    """Unfinished bulk jobs and their rows without a result; a job's rows count once its input has been
    read.
    """

    jobs: int  # the tenant's
    rows: int
    rows_total: int  # all tenants'
    tenants: int  # with any such job
    rows_done: int  # all tenants', of the same jobs
    running_since: datetime | None  # when the first of these jobs started; None: none runs


class Load:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def online(self, tenant_id: str) -> OnlineLoad:
        """Reads an index alone."""
        own, total, tenants = self._connection.execute(_ONLINE, {"tenant": tenant_id}).one()
        return OnlineLoad(own, total, tenants)

    def oldest_online(self) -> datetime | None:
        """When the longest waiting online request was made."""
        oldest: datetime | None = self._connection.execute(
            select(func.min(shard.c.enqueued_at)).where(
                shard.c.state == ShardState.QUEUED, shard.c.kind == JobKind.ONLINE
            )
        ).scalar_one()
        return oldest

    def due_at(self, now: datetime) -> datetime | None:
        """`now` while a job is unfinished or a ring is owed, else the next delivery attempt; None if
        nothing is owed.
        """
        is_at_work, delivery_at = self._connection.execute(_PENDING_WORK).one()
        return now if is_at_work else delivery_at

    def has_unfinished(self, tenant_id: str) -> bool:
        """Whether a job of the tenant has not ended."""
        wanted = exists().where(job.c.tenant_id == tenant_id, job.c.state.in_(_UNFINISHED))
        return bool(self._connection.execute(select(wanted)).scalar_one())

    def bulk(self, tenant_id: str) -> BulkLoad:
        done = job.c.rows_succeeded + job.c.rows_failed
        known = func.coalesce(job.c.rows_total, job.c.rows_estimated, 0)
        left = func.coalesce(func.sum(known - done).filter(known > done), 0)
        is_own = job.c.tenant_id == tenant_id
        found = self._connection.execute(
            select(
                func.count().filter(is_own).label("jobs"),
                func.coalesce(func.sum(known - done).filter(known > done, is_own), 0).label("rows"),
                left.label("rows_total"),
                func.count(job.c.tenant_id.distinct()).label("tenants"),
                func.coalesce(func.sum(done), 0).label("rows_done"),
                func.min(job.c.started_at).label("running_since"),
            ).where(job.c.state.in_(_UNFINISHED), job.c.kind == JobKind.BULK)
        ).one()
        return BulkLoad(
            jobs=found.jobs,
            rows=int(found.rows),
            rows_total=int(found.rows_total),
            tenants=found.tenants,
            rows_done=int(found.rows_done),
            running_since=found.running_since,
        )
