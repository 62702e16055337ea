"""The events of a bulk job's shards that change hands: what a person asks after a night on spot machines.

A claim in order has none: a job may have a hundred thousand shards.
"""

from datetime import datetime
from typing import Final

from nightshift.jobs import BulkClaim, Interruption, JsonObject
from nightshift.store import Transaction
from nightshift.store.shards.leases import ExpiredLease

SHARD_LOST: Final = "job.shard_lost"  # with its worker: `cause` is an ExitCause
SHARD_RETURNED: Final = "job.shard_returned"  # by its worker: `cause` is one of the following
SHARD_RESUMED: Final = "job.shard_resumed"  # by another worker, after the results that are listed

INTERRUPTIONS: Final = (SHARD_LOST, SHARD_RETURNED, SHARD_RESUMED)

HANDED_BACK: Final = "handed_back"  # the worker drains, or the job is paused
POSTPONED: Final = "postponed"  # the storage could not be used
BROKEN: Final = "broken"  # an unforeseen error


def record_lost(tx: Transaction, lost: ExpiredLease, cause: str, now: datetime) -> None:
    ended = Interruption(lost.term, lost.worker_id, cause)
    _interrupted(tx, SHARD_LOST, lost.job_id, lost.shard_no, ended, now)


def record_returned(tx: Transaction, claim: BulkClaim, cause: str) -> None:
    ended = Interruption(claim.lease.term, claim.lease.worker_id, cause)
    _interrupted(tx, SHARD_RETURNED, claim.job.id, claim.shard.shard_no, ended, tx.now())


def record_resumed(tx: Transaction, claim: BulkClaim, now: datetime) -> None:
    """Of a shard that a worker has had before."""
    about = {
        "shard": claim.shard.shard_no,
        "worker_id": claim.lease.worker_id,
        "rows_done": claim.shard.rows_done,
    }
    _append(tx, claim.job.id, SHARD_RESUMED, about, now)


def _interrupted(
    tx: Transaction, type: str, job_id: str, shard_no: int, ended: Interruption, now: datetime
) -> None:
    tx.shards.record_interruption(job_id, shard_no, ended)
    _append(tx, job_id, type, {"shard": shard_no, "worker_id": ended.worker_id, "cause": ended.cause}, now)


def _append(tx: Transaction, job_id: str, type: str, about: JsonObject, now: datetime) -> None:
    tx.events.append(job_id, type, about, now)
