"""The statement that accepts an online request."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from nightshift.jobs import Job, JobKind, JsonObject, NewJob, ShardState
from nightshift.jobs.ids import new_id
from nightshift.store import tables
from nightshift.store.databases.multi_insert import insert_rows
from nightshift.store.jobs.events import first_row
from nightshift.store.jobs.jobs import new_row
from nightshift.store.shards.outbox import Ring, ring_row


class Online:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, new: NewJob, body: JsonObject, event: tuple[str, JsonObject], now: datetime) -> Ring:
        """Insert an online job, its first event (type and data), its shard, its body, and its ring."""
        job, shard_id = new.accepted(now), new_id("shard")
        rank = new.priority.rank
        ring_id = insert_rows(
            self._connection,
            (tables.job, new_row(new, now)),
            (tables.event, first_row(job.id, *event, now)),
            (tables.shard, _shard_row(shard_id, job, now)),
            (tables.request, {"shard_id": shard_id, "body": body}),
            (tables.outbox, ring_row(JobKind.ONLINE, shard_id, rank, now)),
        )
        return Ring(ring_id, JobKind.ONLINE, shard_id, rank)


def _shard_row(shard_id: str, job: Job, now: datetime) -> dict[str, Any]:
    return {
        "id": shard_id,
        "job_id": job.id,
        "tenant_id": job.tenant_id,
        "kind": JobKind.ONLINE,
        "model": job.model,
        "shard_no": 0,
        "state": ShardState.QUEUED,
        "enqueued_at": now,
        "rows_total": 1,
        "uri": "",
        "format": "request",
        "start": 0,
        "capacity": job.spec.capacity,
    }
