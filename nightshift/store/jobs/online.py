"""The statements that accept online requests."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nightshift.jobs import Job, JobKind, JsonObject, NewJob, ShardState
from nightshift.jobs.ids import new_id
from nightshift.jobs.shard import Ring
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.databases.multi_insert import insert_groups
from nightshift.store.jobs.events import event_row
from nightshift.store.jobs.jobs import new_row
from nightshift.store.shards.outbox import ring_row


class Online(Statements):
    def insert(
        self,
        requests: Sequence[tuple[NewJob, JsonObject]],
        events: Sequence[tuple[str, JsonObject]],
        now: datetime,
    ) -> Sequence[Ring]:
        """Inserts online jobs: of each its first event (type and data), its shard, its body, and its ring."""
        shard_ids = [new_id("shard") for _ in requests]
        groups = [
            (
                (tables.job, new_row(new, now)),
                (tables.event, event_row(new.id, *event, now)),
                (tables.shard, _shard_row(shard_id, new.accepted(now), now)),
                (tables.request, {"shard_id": shard_id, "body": body}),
                (tables.outbox, ring_row(JobKind.ONLINE, shard_id, new.priority.rank, now)),
            )
            for (new, body), event, shard_id in zip(requests, events, shard_ids, strict=True)
        ]
        ring_ids = insert_groups(self._connection, groups)
        return [
            Ring(ring_id, JobKind.ONLINE, shard_id, new.priority.rank, new.traceparent)
            for ring_id, shard_id, (new, _) in zip(ring_ids, shard_ids, requests, strict=True)
        ]


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
