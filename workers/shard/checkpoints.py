"""Checkpoints of one shard: results of finished rows, and the tokens of unfinished ones.

    rows done ────────► segment t3-000007.arrow ────┐
                                                    ├──► listed in one transaction, under the term
    rows in flight ───► carry-over t3-c000002.jsonl ┘
                        stored, never read               exist

Objects stored and not listed are collected later, and a listing after the lease is refused. A carry-over
replaces the one before; continuing it costs one prefill. Both are checked against their sha256 when read.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segments import encode_segment, read_rows_done
from nightshift.errors import DatabaseUnavailable, NightshiftError, ObjectNotFound, StorageError
from nightshift.fleet.costs import NO_TIME, WorkerTime
from nightshift.jobs import BulkClaim, Face, Segment, Usage, carry_over_key, carry_over_sha256, segment_key
from nightshift.lifecycle import transitions
from nightshift.objectstore import ObjectDamaged, ObjectTooLarge, read_verified
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.process import failpoints
from nightshift.store import Transaction
from nightshift.store.shards.shards import AlreadyListed
from nightshift_engine.errors import InvalidState
from workers.leases.heartbeat import LeaseLost
from workers.serving.carry_over import CarryOver, decode_carry_overs, encode_carry_overs
from workers.shard.config import ShardConfig, ShardDependencies

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Checkpoint:
    """Listed whole or not at all."""

    results: Sequence[RowResult] = ()  # since the one before
    unfinished: Mapping[int, CarryOver] | None = None  # rows begun; None: the carry-over before stays
    rows_total: int | None = None  # known at the end of the input
    tokens_left_out: int = 0  # of rows in flight
    tokens_covered: int = 0  # of this lease, in it or those before
    tokens_redone: int = 0  # of earlier leases, not continued; since the one before
    segment: Segment | None = None  # once it is stored
    carry_over_key: str | None = None  # likewise


class Checkpoints:
    """Reads what earlier leases left, and writes for this one. One thread at a time."""

    def __init__(self, claim: BulkClaim, dependencies: ShardDependencies, config: ShardConfig) -> None:
        self._claim = claim
        self._held_time, self._storage = dependencies.held_time, dependencies.storage
        self._store, self._objects = dependencies.store, dependencies.objects
        self._carry_over_bytes_max = config.carry_over_bytes_max
        self._segments = 0
        self._carry_overs = 0
        self._carry_over_key = claim.shard.carry_over_key

    def rows_done(self) -> set[int]:
        """The rows in listed segments."""
        with self._store.snapshot() as tx:
            segments = tx.shards.segments(self._claim.shard.id)
        done: set[int] = set()
        for segment in segments:
            done.update(read_rows_done(self._objects, segment))
        return done

    def carry_over(self) -> dict[int, CarryOver]:
        """Rows that the lease before left unfinished, by number. Empty if it is damaged, gone or of no known
        form.
        """
        key = self._claim.shard.carry_over_key
        if key is None:
            return {}
        try:
            return decode_carry_overs(self._read_carry_over(key))
        except (ObjectNotFound, ObjectDamaged, ObjectTooLarge, InvalidState) as error:
            about = {"action": "carry_over_unreadable", "key": key, "reason": str(error)}
            log.warning("rows begin anew", extra=about)
            return {}

    def _read_carry_over(self, key: str) -> bytes:
        sha256 = carry_over_sha256(key)
        if sha256 is None:
            return self._objects.read(key, self._carry_over_bytes_max)
        return read_verified(self._objects, key, sha256, self._carry_over_bytes_max)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores a checkpoint and lists it. Raises LeaseLost.

        Raises StorageError or DatabaseUnavailable; called again then, it does only what is left.
        """
        if checkpoint.results and checkpoint.segment is None:
            checkpoint.segment = self._store_segment(checkpoint.results)
        if checkpoint.unfinished is not None and checkpoint.carry_over_key is None:
            checkpoint.carry_over_key = self._store_carry_over(checkpoint.unfinished)
        self._list(checkpoint)
        self._segments += checkpoint.segment is not None
        if checkpoint.carry_over_key is not None:
            self._carry_overs += 1
            self.forget_carry_over()
            self._carry_over_key = checkpoint.carry_over_key

    def forget_carry_over(self) -> None:
        """Deletes it; if that fails, it is collected later."""
        if self._carry_over_key is None:
            return
        try:
            self._objects.delete(self._carry_over_key)
        except StorageError as error:
            about = {"action": "carry_over_stays", "key": self._carry_over_key, "reason": error.message}
            log.info("carry-over stays", extra=about)
        self._carry_over_key = None

    def _store_segment(self, results: Sequence[RowResult]) -> Segment:
        lease = self._claim.lease
        job, shard_no = self._claim.job, self._claim.shard.shard_no
        encoded = encode_segment(
            ShardHead.of_shard(job, shard_no), results, is_measured=job.face is Face.OPENAI
        )
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
            reused=sum(result.is_reused for result in results),
        )

    def _store_carry_over(self, unfinished: Mapping[int, CarryOver]) -> str:
        data = encode_carry_overs(unfinished, self._carry_over_bytes_max)
        sha256 = hashlib.sha256(data).hexdigest()
        key = carry_over_key(self._claim.lease, self._claim.shard.shard_no, self._carry_overs, sha256)
        self._put(key, data)
        failpoints.hit("worker.carry_over_stored")
        return key

    def _put(self, key: str, data: bytes) -> None:
        with self._storage.waiting(self._storage.written):
            self._objects.put(key, data)
        self._storage.add(self._storage.written, bytes=len(data))

    def _list(self, checkpoint: Checkpoint) -> None:
        try:
            holds = self._listed_and_charged(checkpoint)
        except AlreadyListed:
            return  # the answer to the first try was lost
        if not holds:
            self._count_refusal()
            raise LeaseLost
        if checkpoint.segment is not None:
            failpoints.hit("worker.segment_listed")

    def _listed_and_charged(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.segment is None:  # nothing is counted then
            return self._store.run(lambda tx: self._listed(tx, checkpoint, NO_TIME))
        with self._held_time.charged(self._claim.lease) as worker_time:
            return self._store.run(lambda tx: self._listed(tx, checkpoint, worker_time))

    def _listed(self, tx: Transaction, checkpoint: Checkpoint, worker_time: WorkerTime) -> bool:
        holds = transitions.commit_segment(
            tx,
            self._claim.lease,
            checkpoint.segment,
            tx.now(),
            rows_total=checkpoint.rows_total,
            carry_over_key=checkpoint.carry_over_key,
            tokens_in_flight=checkpoint.tokens_left_out,
            worker_time=worker_time,
        )
        if holds:
            transitions.count_redone(tx, self._claim.lease.job_id, checkpoint.tokens_redone)
        return holds

    def _count_refusal(self) -> None:
        try:
            with self._store.transaction() as tx:
                tx.counters.add("writes_fenced", 1)
        except DatabaseUnavailable:
            pass


class Uploads:
    """Writes the checkpoints of one shard, in order, on its own thread: a slow object store stops no row.

    `put` and `abandon` are called from the shard's thread.
    """

    def __init__(
        self,
        commit: Callable[[Checkpoint], None],
        config: ShardConfig,
        *,
        is_trusted: Callable[[], bool],
        on_listed: Callable[[Checkpoint], None],
        on_failed: Callable[[Exception], None],
        on_waiting: Callable[[NightshiftError], None] = lambda error: None,
        name: str,
    ) -> None:
        """`commit` is called again with a checkpoint it failed on, and only while the lease is trusted. The
        last three are called from this thread.
        """
        self._commit = commit
        self._config = config
        self._is_trusted = is_trusted
        self._on_listed = on_listed
        self._on_failed = on_failed
        self._on_waiting = on_waiting
        self._shard = name
        self._asked_s: float | None = None  # when the commit under way began
        self._waiting: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"uploads-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """Seconds for which the commit under way has lasted; 0: there is none. For any thread."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def put(self, checkpoint: Checkpoint) -> None:
        self._waiting.put(checkpoint)

    def abandon(self) -> None:
        """A checkpoint being written may still be listed, if the term holds."""
        self._abandoned.set()
        self._waiting.put(None)

    def _run(self) -> None:
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """Writes the next checkpoint. False: it was the last. Nothing of a listed one is held while the next
        is waited for.
        """
        checkpoint = self._waiting.get()
        if checkpoint is None:
            return False
        try:
            if not self._write(checkpoint):
                return False
        except Exception as error:  # noqa: BLE001 the shard's thread decides
            self._on_failed(error)
            return False
        self._on_listed(checkpoint)
        return True

    def _write(self, checkpoint: Checkpoint) -> bool:
        """Writes a checkpoint. False: abandoned. Raises non-retryable errors."""
        faults = 0
        while not self._abandoned.is_set():
            wait_s = self._config.listing_retry_s
            if self._is_trusted():
                self._asked_s = time.monotonic()
                try:
                    self._commit(checkpoint)
                    return True
                except (DatabaseUnavailable, StorageError) as error:
                    if not may_pass(error):
                        raise
                    self._log_waiting(error)
                    self._on_waiting(error)
                    if isinstance(error, StorageError):
                        faults += 1
                        wait_s = self._config.fault_delay_s(faults, self._shard)
                finally:
                    self._asked_s = None
            self._abandoned.wait(wait_s)
        return False

    def _log_waiting(self, error: DatabaseUnavailable | StorageError) -> None:
        about = {"action": "checkpoint_waits", "shard": self._shard, "reason": error.message}
        log.warning("checkpoint waits", extra=about)


def may_pass(error: DatabaseUnavailable | StorageError) -> bool:
    """Whether the database or our own store may be back later."""
    return isinstance(error, DatabaseUnavailable) or storage_verdict(error, in_our_store=True) != "fail"
