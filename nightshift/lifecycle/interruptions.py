"""The events of a bulk job's shards that change hands: what a person asks after a night on spot machines.

A claim in order has none: a job may have a hundred thousand shards.
"""

from datetime import datetime
from typing import Final

from nightshift.jobs import BulkClaim, JsonObject
from nightshift.store import Transaction

SHARD_LOST: Final = "job.shard_lost"  # with its worker: `cause` is an ExitCause
SHARD_RETURNED: Final = "job.shard_returned"  # by its worker: `cause` is one of the following
SHARD_RESUMED: Final = "job.shard_resumed"  # by another worker, after the results that are listed

INTERRUPTIONS: Final = (SHARD_LOST, SHARD_RETURNED, SHARD_RESUMED)

HANDED_BACK: Final = "handed_back"  # the worker drains, or the job is paused
POSTPONED: Final = "postponed"  # the storage could not be used
BROKEN: Final = "broken"  # an unforeseen error


def record_lost(
    tx: Transaction, job_id: str, shard_no: int, worker_id: str, cause: str, now: datetime
) -> None:
    _append(tx, job_id, SHARD_LOST, {"shard": shard_no, "worker_id": worker_id, "cause": cause}, now)


def record_returned(tx: Transaction, claim: BulkClaim, cause: str) -> None:
    about = {"shard": claim.shard.shard_no, "worker_id": claim.lease.worker_id, "cause": cause}
    _append(tx, claim.job.id, SHARD_RETURNED, about, tx.now())


def record_resumed(tx: Transaction, claim: BulkClaim, now: datetime) -> None:
    """Of a shard that a worker has had before."""
    about = {
        "shard": claim.shard.shard_no,
        "worker_id": claim.lease.worker_id,
        "rows_done": claim.shard.rows_done,
    }
    _append(tx, claim.job.id, SHARD_RESUMED, about, now)


def _append(tx: Transaction, job_id: str, type: str, about: JsonObject, now: datetime) -> None:
    tx.events.append(job_id, type, about, now)
