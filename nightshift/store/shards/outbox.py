"""Statements about the outbox: rings owed to Redis, written with the work they announce.

The sender deletes a ring afterwards; a crash in between sends it twice, which is harmless.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select

from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.databases.multi_insert import insert_groups

outbox = tables.outbox

_INSERT = insert(outbox).returning(outbox.c.id)


class Outbox(Statements):
    def add(self, kind: JobKind, priority_rank: int, now: datetime, *, shard_id: str | None = None) -> Ring:
        ring_id: int = self._execute(_INSERT, ring_row(kind, shard_id, priority_rank, now)).scalar_one()
        return Ring(ring_id, kind, shard_id, priority_rank)

    def add_bulk(self, count: int, priority_rank: int, now: datetime) -> Sequence[Ring]:
        """Adds rings for workers, each of which takes the best bulk work then: in one statement."""
        row = ring_row(JobKind.BULK, None, priority_rank, now)
        ids = insert_groups(self._connection, [[(outbox, row)]] * count)
        return [Ring(ring_id, JobKind.BULK, None, priority_rank) for ring_id in ids]

    def waiting(self, created_before: datetime, limit: int) -> Sequence[Ring]:
        """Unsent rings, in order. `created_before` leaves the creator time to send its own."""
        rows = self._execute(
            select(outbox).where(outbox.c.created_at <= created_before).order_by(outbox.c.id).limit(limit)
        )
        return [Ring(row.id, JobKind(row.kind), row.shard_id, row.priority_rank) for row in rows]

    def delete(self, ring_ids: Sequence[int]) -> None:
        """Deletes sent rings."""
        self._execute(delete(outbox).where(outbox.c.id.in_(ring_ids)))

    def length(self) -> int:
        return self._execute(select(func.count()).select_from(outbox)).scalar_one()


def ring_row(kind: JobKind, shard_id: str | None, priority_rank: int, now: datetime) -> dict[str, Any]:
    """An owed ring as a row."""
    return {"kind": kind, "shard_id": shard_id, "priority_rank": priority_rank, "created_at": now}
