"""Checkpoints of one shard: results of finished rows, and the tokens of unfinished ones.

    rows done ────────► segment t3-000007.arrow ────┐
                                                    ├──► listed in one transaction, under the term
    rows in flight ───► carry-over t3-c000002.jsonl ┘
                        stored, never read               exist

Objects stored and not listed are collected later. A carry-over replaces the one before; continuing it costs
one prefill. Both are checked against their sha256 when read.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segments import encode_segment, read_rows_done
from nightshift.errors import DatabaseUnavailable, ObjectNotFound, StorageError
from nightshift.fleet.costs import NO_TIME, WorkerTime
from nightshift.jobs import BulkClaim, Face, Segment, Usage, carry_over_key, carry_over_sha256, segment_key
from nightshift.lifecycle import transitions
from nightshift.objectstore import ObjectDamaged, ObjectStore, ObjectTooLarge, read_verified
from nightshift.process import failpoints
from nightshift.store import Store, Transaction
from nightshift.store.shards.shards import AlreadyListed
from nightshift_engine import InvalidState
from workers.leases.errors import LeaseLost
from workers.serving.carry_over import CarryOver, decode_carry_overs, encode_carry_overs
from workers.shard.held_time import HeldTime
from workers.shard.storage_counts import StorageCounts

log = logging.getLogger(__name__)

CARRY_OVER_BYTES_MAX = 256 * 1024 * 1024  # that a reader holds; no more is written


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Listed whole or not at all."""

    results: Sequence[RowResult] = ()  # since the one before
    unfinished: Mapping[int, CarryOver] | None = None  # rows begun; None: the carry-over before stays
    rows_total: int | None = None  # known at the end of the input
    tokens_left_out: int = 0  # of rows in flight
    tokens_covered: int = 0  # of this lease, in it or those before
    tokens_redone: int = 0  # of earlier leases, not continued; since the one before


@dataclass
class _Stored:
    """Stored and not listed yet."""

    checkpoint: Checkpoint
    segment: Segment | None = None
    carry_over_key: str | None = None


class Checkpoints:
    """Reads what earlier leases left, and writes for this one. One thread at a time."""

    def __init__(
        self,
        claim: BulkClaim,
        store: Store,
        objects: ObjectStore,
        storage: StorageCounts | None = None,
        held_time: HeldTime | None = None,
    ) -> None:
        self._claim = claim
        self._held_time = held_time or HeldTime()
        self._storage = storage or StorageCounts()
        self._store = store
        self._objects = objects
        self._segments = 0
        self._carry_overs = 0
        self._carry_over_key = claim.shard.carry_over_key
        self._stored: _Stored | None = None

    def rows_done(self) -> set[int]:
        """The rows in listed segments."""
        with self._store.snapshot() as tx:
            segments = tx.shards.segments(self._claim.shard.id)
        done: set[int] = set()
        for segment in segments:
            done.update(read_rows_done(self._objects, segment))
        return done

    def carry_over(self) -> dict[int, CarryOver]:
        """What the lease before left unfinished, by row. Empty if it is damaged, gone or of no known form."""
        key = self._claim.shard.carry_over_key
        if key is None:
            return {}
        try:
            return decode_carry_overs(self._read_carry_over(key))
        except (ObjectNotFound, ObjectDamaged, ObjectTooLarge, InvalidState) as error:
            log.warning(
                "rows begin anew",
                extra={"action": "carry_over_unreadable", "key": key, "reason": str(error)},
            )
            return {}

    def _read_carry_over(self, key: str) -> bytes:
        sha256 = carry_over_sha256(key)
        if sha256 is None:
            return self._objects.read(key, CARRY_OVER_BYTES_MAX)
        return read_verified(self._objects, key, sha256, CARRY_OVER_BYTES_MAX)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint and list it. Raises LeaseLost.

        Raises StorageError or DatabaseUnavailable; called again then, it does only what is left.
        """
        if self._stored is None or self._stored.checkpoint is not checkpoint:
            self._stored = _Stored(checkpoint)
        stored = self._stored
        if checkpoint.results and stored.segment is None:
            stored.segment = self._store_segment(checkpoint.results)
        if checkpoint.unfinished is not None and stored.carry_over_key is None:
            stored.carry_over_key = self._store_carry_over(checkpoint.unfinished)
        self._list(stored)
        self._segments += stored.segment is not None
        if stored.carry_over_key is not None:
            self._carry_overs += 1
            self.forget_carry_over()
            self._carry_over_key = stored.carry_over_key
        self._stored = None  # its results leave the memory

    def forget_carry_over(self) -> None:
        """Delete it; if that fails, it is collected later."""
        if self._carry_over_key is None:
            return
        try:
            self._objects.delete(self._carry_over_key)
        except StorageError as error:
            log.info(
                "carry-over stays",
                extra={
                    "action": "carry_over_stays",
                    "key": self._carry_over_key,
                    "reason": error.message,
                },
            )
        self._carry_over_key = None

    def _store_segment(self, results: Sequence[RowResult]) -> Segment:
        lease = self._claim.lease
        job, shard_no = self._claim.job, self._claim.shard.shard_no
        encoded = encode_segment(ShardHead.of(job, shard_no), results, is_measured=job.face is Face.OPENAI)
        key = segment_key(lease, shard_no, self._segments)
        self._put(key, encoded.data)
        failpoints.hit("worker.segment_stored")
        return Segment(
            key=key,
            term=lease.term,
            seq=self._segments,
            succeeded=sum(result.succeeded for result in results),
            failed=sum(not result.succeeded for result in results),
            usage=sum((result.usage for result in results), Usage()),
            size_bytes=len(encoded.data),
            sha256=hashlib.sha256(encoded.data).hexdigest(),
            output_bytes=encoded.output_bytes,
            reused=sum(each.is_reused for each in results),
            earlier=sum(each.is_earlier for each in results),
        )

    def _store_carry_over(self, unfinished: Mapping[int, CarryOver]) -> str:
        data = encode_carry_overs(unfinished, CARRY_OVER_BYTES_MAX)
        sha256 = hashlib.sha256(data).hexdigest()
        key = carry_over_key(self._claim.lease, self._claim.shard.shard_no, self._carry_overs, sha256)
        self._put(key, data)
        failpoints.hit("worker.carry_over_stored")
        return key

    def _put(self, key: str, data: bytes) -> None:
        with self._storage.waiting(self._storage.written):
            self._objects.put(key, data)
        self._storage.add(self._storage.written, bytes=len(data))

    def _list(self, stored: _Stored) -> None:
        try:
            holds = self._listed_and_charged(stored)
        except AlreadyListed:
            return  # the answer to the first try was lost
        if not holds:
            self._count_refusal()
            raise LeaseLost
        if stored.segment is not None:
            failpoints.hit("worker.segment_listed")

    def _listed_and_charged(self, stored: _Stored) -> bool:
        if stored.segment is None:  # nothing is counted then
            return self._store.run(lambda tx: self._listed(tx, stored, NO_TIME))
        with self._held_time.charged(self._claim.lease) as worker_time:
            return self._store.run(lambda tx: self._listed(tx, stored, worker_time))

    def _listed(self, tx: Transaction, stored: _Stored, worker_time: WorkerTime) -> bool:
        lease, checkpoint = self._claim.lease, stored.checkpoint
        holds = transitions.commit_segment(
            tx,
            lease,
            stored.segment,
            tx.now(),
            rows_total=checkpoint.rows_total,
            carry_over_key=stored.carry_over_key,
            tokens_in_flight=checkpoint.tokens_left_out,
            worker_time=worker_time,
        )
        if holds:
            transitions.count_redone(tx, lease.job_id, checkpoint.tokens_redone)
        return holds

    def _count_refusal(self) -> None:
        try:
            with self._store.transaction() as tx:
                tx.counters.add("writes_fenced", 1)
        except DatabaseUnavailable:
            return  # a count is not worth waiting for
