"""Runs one shard under its lease: rows in, results checkpointed, shard done.

One thread a shard and one inbox: finished rows, orders and bad news all arrive there, and everything is
decided in `_work`, in order. Rows are read only as fast as the engine takes them and results leave the
memory with every segment, so a shard costs the same however many rows it has.

    input ──► ShardRows ──► engine ──► inbox ──► _checkpoint ──► uploads
                  ▲                      │          (finished rows, and the tokens so far of the others)
                  └─── rows in flight ◄──┘

Trouble with the database or our own store is waited for under the lease; trouble with the input, or a bug, is
no reason to keep it: what is finished is written, and the shard goes back to the queue.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from nightshift.errors import (
    DatabaseUnavailable,
    NightshiftError,
    ObjectNotFound,
    StorageError,
)
from nightshift.jobs import BulkClaim, StopReason
from nightshift.jobs.leases import retry_delay_s
from nightshift.objectstore import ObjectDamaged, ObjectStore
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.rows.outputs import CorruptSegment
from nightshift.store import Store
from workers.health.heartbeat import Heartbeat
from workers.serving.inference import Progress
from workers.serving.models import Models
from workers.shard.endings import Endings
from workers.shard.ledger import Ledger
from workers.shard.rows import InputTrouble, ShardRows
from workers.shard.segments import Checkpoint, Checkpoints, LeaseLost
from workers.shard.suspicion import Isolation, watch
from workers.shard.uploads import UPLOADS_MAX, Uploads, may_pass

log = logging.getLogger(__name__)

BUSY_RETRY_S: Final = 0.2  # how long to wait before offering a row again to a model that took none

T = TypeVar("T")


@dataclass(frozen=True)
class ShardConfig:
    """Limits of one running shard."""

    rows_in_flight_max: int  # inside the engine at once
    segment_rows: int  # a checkpoint after so many finished rows …
    segment_interval_s: float  # … or so long after the first of them
    carry_over_interval_s: float  # the tokens of rows older than this are saved so often; 0: on leaving only
    flush_s: float  # whoever leaves waits so long for what is finished to be written
    stop_grace_s: float  # rows in flight may finish for so long after an order to stop
    line_bytes_max: int  # one input row

    @property
    def rows_at_risk_max(self) -> int:
        """Rows begun and in no listed segment: being written, waiting for that, or in the engine."""
        return (UPLOADS_MAX + 1) * self.segment_rows + 2 * self.rows_in_flight_max


@dataclass(frozen=True)
class ShardDependencies:
    """What a shard is run with: shared by all shards of a worker."""

    store: Store
    objects: ObjectStore
    sources: Sources
    models: Models
    heartbeat: Heartbeat
    isolation: Isolation = field(default_factory=Isolation)


@dataclass(frozen=True)
class _Heard:
    """Something has come of a row."""

    inference_id: str
    progress: Progress


@dataclass(frozen=True)
class _Stored:
    """A checkpoint is written."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class _Broken:
    """A checkpoint cannot be written, and no waiting mends that."""

    error: Exception


class _Drain:
    """Leave: hand the shard back with everything that is finished, and what is not as tokens so far."""


class _Lost:
    """The lease is gone."""


_Message = _Heard | _Stored | _Broken | _Drain | _Lost | StopReason


class ShardRunner:
    """One lease of one shard, from claim to its end. Start it once."""

    def __init__(
        self,
        claim: BulkClaim,
        dependencies: ShardDependencies,
        config: ShardConfig,
        on_end: Callable[["ShardRunner"], None],
    ) -> None:
        self.claim = claim
        self._dependencies = dependencies
        self._config = config
        self._on_end = on_end
        self._name = f"{claim.job.id}/{claim.shard.shard_no}"
        self._checkpoints = Checkpoints(claim, dependencies.store, dependencies.objects)
        self._uploads = Uploads(
            self._checkpoints.commit,
            is_trusted=lambda: dependencies.heartbeat.trusts(claim.lease),
            on_stored=lambda checkpoint: self._inbox.put(_Stored(checkpoint)),
            on_broken=lambda error: self._inbox.put(_Broken(error)),
            name=self._name,
        )
        self._endings = Endings(claim, dependencies.store)
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._ledger = Ledger(
            segment_rows=config.segment_rows,
            segment_interval_s=config.segment_interval_s,
            carry_over_interval_s=config.carry_over_interval_s,
        )
        self._rows = ShardRows(
            claim,
            dependencies.sources,
            dependencies.models,
            self._ledger,
            watch(claim, dependencies.store, dependencies.isolation, config.rows_at_risk_max),
            line_bytes_max=config.line_bytes_max,
            on_progress=lambda inference_id, progress: self._inbox.put(_Heard(inference_id, progress)),
        )
        self._is_draining = False
        self._stop_at_s: float | None = None  # when rows still in flight are given up
        self._leave_by_s = float("inf")  # when what is not written is given up
        self._thread = threading.Thread(target=self._run, name=f"shard-{claim.shard.shard_no}", daemon=True)

    # -- orders, from any thread -----------------------------------------------------------------------

    def start(self) -> None:
        """Raises RuntimeError when there is no thread for it; then nothing has begun, and it never ends."""
        self._uploads.start()
        try:
            self._thread.start()
        except RuntimeError:
            self._uploads.abandon()
            raise

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def drain(self) -> None:
        self._inbox.put(_Drain())

    def lease_lost(self) -> None:
        self._inbox.put(_Lost())

    def stop_requested(self, reason: StopReason) -> None:
        self._inbox.put(reason)

    def tokens_at_risk(self) -> int:
        """How many tokens would be generated again if this process died now."""
        return self._ledger.tokens_at_risk()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. False: it is still running."""
        self._thread.join(timeout_s)
        return not self.is_alive

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        lease = self.claim.lease
        started_s = time.monotonic()
        try:
            outcome = self._outcome()
        except LeaseLost:
            outcome = "lost"
        except DatabaseUnavailable as error:
            outcome = f"abandoned until its lease expires: {error.message}"
        except Exception:
            log.exception("shard broke", extra={"action": "shard_broke", "shard": lease.shard_id})
            outcome = "abandoned until its lease expires"
        finally:
            self._uploads.abandon()
            self._rows.close()
            self._dependencies.heartbeat.release(lease)
            self._on_end(self)
        log.info(
            "shard ended",
            extra={
                "action": "shard_ended",
                "outcome": outcome,
                "job": lease.job_id,
                "shard_no": self.claim.shard.shard_no,
                "term": lease.term,
                "rows_total": self._rows.total,
                "seconds": round(time.monotonic() - started_s, 3),
            },
        )

    def _outcome(self) -> str:
        """Run the shard, and leave it as what came of that demands."""
        try:
            self._work()
            return self._end()
        except (LeaseLost, DatabaseUnavailable):
            raise
        except InputTrouble as trouble:
            return self._leave_input(trouble.error)
        except (ObjectDamaged, CorruptSegment, ObjectNotFound) as error:
            return self._fail(error)  # listed results are lost: nobody else would find them either
        except StorageError as error:
            return self._postpone(error)
        except NightshiftError as error:
            return self._fail(error)
        except Exception as error:
            log.exception("shard broke", extra={"action": "shard_broke", "shard": self.claim.lease.shard_id})
            self._endings.break_off(self.tokens_at_risk())
            return f"broke: {type(error).__name__}: {error}"

    def _work(self) -> None:
        done = self._insist(self._checkpoints.rows_done)
        left = self._insist(self._checkpoints.carry_over)
        self._ledger.left = {row: carry_over for row, carry_over in left.items() if row not in done}
        self._rows.open(done)
        while self._rows.has_waiting or self._ledger.in_flight:
            while self._rows.has_waiting and self._may_admit and self._rows.admit_next():
                self._rows.on_admission_blocked()
            if self._must_leave:
                break
            if not self._may_admit:
                self._rows.on_admission_blocked()
            self._listen(BUSY_RETRY_S if self._may_admit and self._rows.has_waiting else None)
            if self._checkpoint_is_due:
                self._checkpoint()
        self._flush()

    @property
    def _may_admit(self) -> bool:
        has_room = len(self._ledger.in_flight) < self._config.rows_in_flight_max and not self._uploads.is_full
        return has_room and not self._is_draining and self._stop_at_s is None

    @property
    def _must_leave(self) -> bool:
        if self._is_draining:
            return True
        return self._stop_at_s is not None and (
            not self._ledger.in_flight or time.monotonic() >= self._stop_at_s
        )

    # -- news ------------------------------------------------------------------------------------------

    def _listen(self, timeout_s: float | None) -> None:
        """Wait for news, but not past the next thing that is due; then take all there is."""
        now_s = time.monotonic()
        waits = [] if timeout_s is None else [timeout_s]
        if not self._uploads.is_full and (due_in_s := self._ledger.due_in_s) is not None:
            waits.append(due_in_s)
        if self._stop_at_s is not None:
            waits.append(self._stop_at_s - now_s)
        try:
            self._hear(self._inbox.get(timeout=max(0.0, min(waits)) if waits else None))
            while not self._checkpoint_is_due:
                self._hear(self._inbox.get_nowait())
        except Empty:
            return

    def _hear(self, message: _Message) -> None:
        if isinstance(message, _Lost):
            raise LeaseLost
        if isinstance(message, _Broken):
            raise message.error
        if isinstance(message, _Stored):
            self._uploads.stored()
            self._ledger.written(message.checkpoint)
        elif isinstance(message, _Drain):
            self._is_draining = True
            self._leave_by_s = time.monotonic() + self._config.flush_s
        elif isinstance(message, StopReason):
            if self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + self._config.stop_grace_s
                self._leave_by_s = min(self._leave_by_s, self._stop_at_s + self._config.flush_s)
        else:
            self._rows.hear(message.inference_id, message.progress)

    def _insist(self, act: Callable[[], T]) -> T:
        """Do what the database or our own store must do for us, however often it takes under this lease.

        Orders are heard meanwhile. Raises what no waiting mends, and anything once it is time to leave.
        """
        faults = 0
        while True:
            try:
                return act()
            except (DatabaseUnavailable, StorageError) as error:
                if not may_pass(error) or time.monotonic() >= self._leave_by_s:
                    raise
                log.warning("shard waits", extra={"action": "shard_waits", "reason": error.message})
            faults += 1
            self._hear_until(time.monotonic() + retry_delay_s(faults, self._name))

    def _hear_until(self, end_s: float) -> None:
        while (left_s := min(end_s, self._leave_by_s) - time.monotonic()) > 0:
            try:
                self._hear(self._inbox.get(timeout=left_s))
            except Empty:
                return

    # -- checkpoints -----------------------------------------------------------------------------------

    @property
    def _checkpoint_is_due(self) -> bool:
        """Whether there is something to write, and a place for it on the way."""
        return self._ledger.is_due and not self._uploads.is_full

    def _checkpoint(self, *, of_everything: bool = False) -> None:
        checkpoint = self._ledger.take(self._rows.total, of_everything=of_everything)
        if checkpoint is not None:
            self._uploads.put(checkpoint)

    def _flush(self) -> None:
        """Write all there is, rows under way included, and wait until that is done or it is time to leave."""
        self._rows.cancel_all()
        self._checkpoint(of_everything=self._stop_at_s is None)
        self._ledger.in_flight.clear()
        while self._uploads.pending and time.monotonic() < self._leave_by_s:
            left_s = self._leave_by_s - time.monotonic()
            try:
                self._hear(self._inbox.get(timeout=None if left_s == float("inf") else max(0.0, left_s)))
            except Empty:
                break

    # -- the end ---------------------------------------------------------------------------------------

    def _end(self) -> str:
        if self._is_draining:
            ended, outcome = (
                self._insist(lambda: self._endings.hand_back(self.tokens_at_risk())),
                "handed back",
            )
        elif self._stop_at_s is not None:
            ended, outcome = self._insist(self._endings.stop), "stopped"
        else:
            rows_total = self._rows.total
            assert rows_total is not None, "the input was read to its end"
            ended, outcome = self._insist(lambda: self._endings.complete(rows_total)), "done"
        if not ended:
            raise LeaseLost
        if not self._is_draining:
            self._checkpoints.forget_carry_over()
        return outcome

    def _leave_input(self, error: StorageError) -> str:
        """The rows cannot be read now, or not at all. What is finished is not lost with that."""
        self._leave_by_s = min(self._leave_by_s, time.monotonic() + self._config.flush_s)
        self._flush()
        if storage_verdict(error, in_our_store=is_file_id(self.claim.shard.uri)) == "fail":
            return self._fail(error)
        return self._postpone(error)

    def _postpone(self, error: StorageError) -> str:
        self._endings.postpone(self.tokens_at_risk())
        return f"postponed: {error.message}"

    def _fail(self, error: NightshiftError) -> str:
        self._endings.fail()
        return f"failed: {error.message}"
