"""Statements that find what has had its time: of one tenant, the first to end first, by an index."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select, tuple_

from nightshift.jobs import JobKind
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.files import JobPart
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.jobs.deletions import DELETED_AT, distinct_tenants

job = tables.job
delivery = tables.delivery
dead_row = tables.dead_row


@dataclass(frozen=True)
class EndedJob:
    id: str
    finished_at: datetime


class Ageing(Statements):
    def tenants(self) -> Sequence[str]:
        """Tenants with jobs, deliveries or receivers that are gone, in alphabetical order."""
        of_jobs = (job, delivery, tables.gone_endpoint)
        return sorted({tenant for table in of_jobs for tenant in distinct_tenants(self._connection, table)})

    def ended(
        self,
        tenant_id: str,
        kind: JobKind,
        part: JobPart,
        until: datetime,
        *,
        limit: int,
        after: EndedJob | None = None,
    ) -> Sequence[EndedJob]:
        """A tenant's jobs that ended until then and still have this part. `after`: the last of the previous
        page.
        """
        order = (job.c.finished_at, job.c.id)
        wanted = select(*reversed(order)).where(
            job.c.tenant_id == tenant_id,
            job.c.kind == kind,
            job.c.finished_at.is_not(None),
            job.c.finished_at <= until,
            DELETED_AT[part].is_(None),
        )
        if after is not None:
            wanted = wanted.where(
                tuple_(*order)
                > tuple_(bindparam(None, after.finished_at, type_=job.c.finished_at.type), after.id)
            )
        rows = self._execute(wanted.order_by(*order).limit(limit))
        return [EndedJob(row.id, row.finished_at) for row in rows]

    def awaited(self, job_ids: Collection[str], delivered_since: datetime) -> set[str]:
        """Jobs among these whose event is still owed to a receiver, or came to it since then: it asks for
        the job after that.
        """
        rows = self._execute(
            select(delivery.c.job_id).where(
                delivery.c.job_id.in_(job_ids),
                (delivery.c.state == DeliveryState.PENDING) | (delivery.c.delivered_at > delivered_since),
            )
        )
        return set(rows.scalars())

    def undecided(self, job_ids: Collection[str]) -> set[str]:
        """Jobs among these with a dead letter that may still be replayed."""
        rows = self._execute(
            select(dead_row.c.job_id).where(
                dead_row.c.job_id.in_(job_ids), dead_row.c.state == DeadLetterState.DEAD
            )
        )
        return set(rows.scalars())
