"""Statements about waiting work, for admission and for an idle scheduler."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, exists, func, or_, select

from nightshift.jobs import JobKind, JobState, ShardState
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables

job = tables.job
shard = tables.shard

_UNFINISHED = tuple(state for state in JobState if not state.is_terminal)

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
class Pace:
    """How fast unfinished bulk jobs get on that are not paused."""

    rows_done: int  # all tenants'
    running_since: datetime | None  # when the first of these jobs started; None: none runs


class Load:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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

    def bulk_pace(self) -> Pace:
        """Reads every unfinished bulk job: only for what is refused."""
        done = job.c.rows_succeeded + job.c.rows_failed
        rows_done, running_since = self._connection.execute(
            select(func.coalesce(func.sum(done), 0), func.min(job.c.started_at)).where(
                job.c.state.in_(_UNFINISHED), job.c.kind == JobKind.BULK, job.c.paused_at.is_(None)
            )
        ).one()
        return Pace(int(rows_done), running_since)
