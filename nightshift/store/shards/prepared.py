"""A page of a bulk job's shards, made into rows before the transaction that inserts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.jobs import Job, JobKind, NewShard, ShardState
from nightshift.jobs.ids import new_ids
from nightshift.store.databases.multi_insert import PreparedRows
from nightshift.store.tables import shard

INSERT_ROWS_MAX: Final = 500  # in one statement


@dataclass(frozen=True)
class PreparedShards:
    """Claimable shards of a bulk job, as rows: other writers do not wait while these are made."""

    count: int
    rows: Sequence[PreparedRows]

    @classmethod
    def of(
        cls, dialect: str, job: Job, model: str, planned: Sequence[NewShard], now: datetime
    ) -> "PreparedShards":
        rows = [
            {
                "id": shard_id,
                "job_id": job.id,
                "tenant_id": job.tenant_id,
                "kind": JobKind.BULK,
                "model": model,
                "shard_no": new.shard_no,
                "state": ShardState.QUEUED,
                "enqueued_at": now,
                "rows_estimated": new.rows_estimated,
                "first_row": new.first_row,
                "uri": new.uri,
                "format": new.format,
                "start": new.start,
                "end": new.end,
                "capacity": job.spec.capacity,
                "source_etag": new.source_etag,
                "objects": [[each.uri, each.etag] for each in new.objects] or None,
            }
            for shard_id, new in zip(new_ids("shard", len(planned)), planned, strict=True)
        ]
        pages = [rows[first : first + INSERT_ROWS_MAX] for first in range(0, len(rows), INSERT_ROWS_MAX)]
        return cls(len(rows), [PreparedRows(dialect, shard, page) for page in pages])
