"""Runs one shard under its lease: rows in, results checkpointed, shard done.

    input ──► Reader ──► RowQueue ──► engine ──► messages ──► Ledger ──► Uploads
                                                    ▲                       │
                                                    └── checkpoint listed ──┘

Only the shard's thread changes the ledger. Results leave the memory with every segment. Trouble with the
database or our own store is waited for under the lease; trouble with the input, or a bug, ends it once
finished rows are written.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from nightshift.bulk.results.row_results import RowResult
from nightshift.errors import DatabaseUnavailable, NightshiftError, StorageError, StorageUnavailable
from nightshift.jobs import BulkClaim, StopReason
from nightshift.jobs.priorities import HeldShard
from nightshift.process import failpoints
from nightshift.process.tracing.spans import NO_SPAN, under
from nightshift_engine import RequestTimes
from workers.leases.heartbeat import LeaseLost
from workers.leases.isolation import watch
from workers.shard.checkpoints import Checkpoint, Checkpoints, Uploads, may_pass
from workers.shard.config import UPLOADS_MAX, ShardConfig, ShardDependencies
from workers.shard.endings import Endings
from workers.shard.ledger import Ledger
from workers.shard.orders import Drain, Failure, Message, Orders, RowProgress, RowsRead, TurnCame
from workers.shard.reader import InputUnreadable
from workers.shard.row import ShardRow
from workers.shard.row_queue import RowQueue
from workers.shard.waits import ShardWaits
from workers.traces import ShardTrace

log = logging.getLogger(__name__)

BUSY_RETRY_S: Final = 0.2  # before a busy model is offered a row again
CHARS_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024  # in the texts and images of a shard's rows in flight
GATHER_S: Final = 1.0  # between two looks at what rows in flight have generated
LOAD_STEPS: Final = 8  # in which a shard's load is told, rounded down

T = TypeVar("T")


class ShardRunner:
    """One lease of one shard. Start it once."""

    def __init__(
        self,
        claim: BulkClaim,
        dependencies: ShardDependencies,
        config: ShardConfig,
        on_end: Callable[["ShardRunner"], None],
        on_load_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes two callbacks, both called from its own thread, `on_load_change` after `held` has changed."""
        self.claim = claim
        self.held = HeldShard(claim.job.tenant_id, claim.job.model or "", load=1.0)
        heartbeat = self._heartbeat = dependencies.heartbeat
        self._config = config
        self._on_end = on_end
        self._on_load_change = on_load_change
        self._name = f"{claim.job.id}/{claim.shard.shard_no}"
        self._trace = ShardTrace.begin(claim)
        self._rows_in_flight_max = config.rows_in_flight(claim)
        self._row_timeout_s = claim.job.spec.options.row_timeout_s
        self._gather_at_s = time.monotonic() + GATHER_S
        # Callbacks hold the messages, not the runner, which is freed at once when it has ended.
        messages: SimpleQueue[Message] = SimpleQueue()
        self._messages = messages
        self._orders = Orders(config)
        # After a lost worker, results are recorded at once: they tell which rows it was not lost with.
        self._ledger = Ledger(config, is_spaced=not claim.crash_history.is_watched)
        self._rows = RowQueue(
            claim,
            dependencies,
            config,
            watch(claim, dependencies.store, dependencies.isolation, config.rows_at_risk_max),
            earlier=self._ledger.earlier,
            on_progress=lambda row, id, progress: messages.put(RowProgress(row, id, progress)),
            on_rows=lambda: messages.put(RowsRead()),
            on_turn=lambda row, result: messages.put(TurnCame(row, result)),
            trace=self._trace,
        )
        self._checkpoints = Checkpoints(claim, dependencies, config)
        waits = self._waits = ShardWaits(claim, dependencies.store)
        self._uploads = Uploads(
            self._checkpoints.commit,
            config,
            on_waiting=waits.for_results,
            is_trusted=lambda: heartbeat.trusts(claim.lease),
            on_listed=messages.put,
            on_failed=lambda error: messages.put(Failure(error)),
            name=self._name,
        )
        self._endings = Endings(claim, dependencies.store, dependencies.held_time, config.fault_delay_s)
        self._thread = threading.Thread(target=self._run, name=f"shard-{claim.shard.shard_no}", daemon=True)

    # -- orders, from any thread

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started; then nothing has begun, and it never ends."""
        self._uploads.start()
        try:
            self._rows.start()
            self._thread.start()
        except RuntimeError:
            self._rows.close()
            self._uploads.abandon()
            raise

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def drain(self) -> None:
        self._messages.put(Drain())

    def lease_lost(self) -> None:
        self._messages.put(Failure(LeaseLost()))

    def stop_requested(self, reason: StopReason) -> None:
        self._messages.put(reason)

    def pause_requested(self) -> None:
        """Keeps what has been generated, as when this worker drains."""
        self.drain()

    def tokens_at_risk(self) -> int:
        return self._ledger.tokens_at_risk()

    @property
    def model_id(self) -> str:
        return self.claim.job.model or ""

    @property
    def rows_finished(self) -> int:
        return self._ledger.rows_finished

    def join(self, timeout_s: float) -> bool:
        """Waits for its end. False: it is still running."""
        self._thread.join(timeout_s)
        return not self.is_alive

    # -- the thread

    def _run(self) -> None:
        with under(NO_SPAN if self._trace is None else self._trace.span):
            self._run_shard()

    def _run_shard(self) -> None:
        lease = self.claim.lease
        started_s = time.monotonic()
        outcome, error_type = "", None
        try:
            outcome = self._outcome()
        except LeaseLost:
            outcome = "lost"
        except DatabaseUnavailable as error:
            outcome, error_type = f"abandoned until its lease expires: {error.message}", type(error).__name__
        except Exception as error:
            log.exception("shard broke", extra={"action": "shard_broke", "shard": lease.shard_id})
            outcome, error_type = "abandoned until its lease expires", type(error).__name__
        finally:
            self._uploads.abandon()
            self._cancel_rows()
            self._rows.close()
            self._heartbeat.release(lease)
            if self._trace is not None:
                # What follows the colon may quote what a store has said.
                self._trace.ended(outcome.partition(":")[0], error_type)
            self._on_end(self)
        seconds = round(time.monotonic() - started_s, 3)
        about = {"job": lease.job_id, "shard_no": self.claim.shard.shard_no, "term": lease.term}
        ended = {"outcome": outcome, "rows_total": self._rows.total, "seconds": seconds}
        log.info("shard ended", extra={"action": "shard_ended"} | about | ended)

    def _outcome(self) -> str:
        """Runs the shard, and ends the lease as its outcome demands."""
        try:
            self._work()
            return self._end()
        except (LeaseLost, DatabaseUnavailable):
            raise
        except InputUnreadable as unreadable:
            self._orders.leave()
            self._flush()  # finished rows are not lost with unreadable ones
            return self._endings.after_input(unreadable.error, self.tokens_at_risk(), unreadable.param)
        except NightshiftError as error:
            return self._endings.after(error, self.tokens_at_risk())
        except Exception as error:
            log.exception("shard broke", extra={"action": "shard_broke", "shard": self.claim.lease.shard_id})
            return self._endings.break_off(error, self.tokens_at_risk())

    def _work(self) -> None:
        """Runs every row that has no result yet, as far as the orders allow."""
        done = self._retry(self._checkpoints.rows_done)
        carry_overs = self._retry(self._checkpoints.carry_over)
        self._ledger.resume({row: carry_over for row, carry_over in carry_overs.items() if row not in done})
        self._rows.open(done)
        while self._has_more:
            self._admit_rows()
            if time.monotonic() >= self._gather_at_s:
                self._gather()
            self._end_slow_rows()
            self._give_up_late_rows()
            if self._orders.must_leave(has_rows_in_flight=bool(self._ledger.in_flight)):
                break
            if not (self._may_admit and self._rows.can_admit):
                self._rows.on_admission_blocked()
            self._note_load()
            self._note_silence()
            self._waits.for_model(self._rows.problem)
            if self._has_more:  # else the last rows needed no engine
                self._wait()
            if self._checkpoint_is_due:
                self._checkpoint()
        else:
            self._rows.check_input()
            self._note_load()
        self._flush()

    # -- rows

    @property
    def _has_more(self) -> bool:
        return self._rows.has_waiting or bool(self._ledger.in_flight)

    @property
    def _may_admit(self) -> bool:
        has_room = len(self._ledger.in_flight) < self._rows_in_flight_max
        has_room &= self._ledger.chars_in_flight < CHARS_IN_FLIGHT_MAX
        return has_room and not self._uploads_are_full and self._orders.may_begin

    def _admit_rows(self) -> None:
        while self._rows.can_admit and self._may_admit:
            admitted = self._rows.admit_next()
            if admitted is None:
                return
            self._waits.input_came()
            if isinstance(admitted, ShardRow):
                self._ledger.begin(admitted)
            else:
                self._finish(admitted)
                if self._ledger.is_due:  # rows that need no engine may be many
                    return
            self._rows.on_admission_blocked()

    def _note_load(self) -> None:
        """Lowers the load below 1 once its rows are all read and fewer than it may have in the engine."""
        most, left = self._rows_in_flight_max, self._rows.left if self._orders.may_begin else 0
        rows = most if left is None else min(most, left + len(self._ledger.in_flight))
        load = LOAD_STEPS * rows // most / LOAD_STEPS
        if load != self.held.load:
            self.held = replace(self.held, load=load)
            self._on_load_change()

    def _note_silence(self) -> None:
        if not self._ledger.in_flight and self._rows.silent_s >= self._config.silent_s:
            self._waits.for_input()
        if self._uploads.silent_s >= self._config.silent_s:
            self._waits.for_results(StorageUnavailable())

    def _note_progress(self, message: RowProgress) -> None:
        failpoints.hit("worker.row_heard")
        row, progress = self._ledger.in_flight.get(message.row), message.progress
        if row is None or row.inference_id != message.inference_id:
            return  # it was cancelled
        self._ledger.progress(message.row, progress)
        if progress.result is None and progress.failed is None:
            return
        result = self._rows.ended(row, progress)
        if result is None:
            self._ledger.interrupt(message.row)
        else:
            self._finish(result, row, progress.times)
            if result.succeeded:
                self._waits.images_came()

    def _finish(
        self, result: RowResult, row: ShardRow | None = None, times: RequestTimes | None = None
    ) -> None:
        """`row`: None for one that the engine never had."""
        self._ledger.finish(result)
        if self._trace is not None:
            begun = None if row is None else (row.since_s, row.tries)
            self._trace.row_ended(result, begun, times)

    def _gather(self) -> None:
        """Collects what the rows in flight have generated, of which only their ends are told."""
        for number, row in self._ledger.in_flight.items():
            assert row.server is not None, "the engine has it"
            for progress in row.server.generated(row.inference_id):
                self._ledger.progress(number, progress)
        self._gather_at_s = time.monotonic() + GATHER_S

    def _end_slow_rows(self) -> None:
        """Ends the rows that have taken as long as their job allows."""
        if self._row_timeout_s is None:
            return
        for row in self._ledger.begun_before(self._row_timeout_s):
            self._finish(self._rows.timed_out(row, self._row_timeout_s), row)

    def _give_up_late_rows(self) -> None:
        """Gives up rows, after an order to stop, that will not end in time: others need not wait for them."""
        if not self._orders.is_stopping:
            return
        for row in self._ledger.hopeless(self._orders.stop_in_s):
            self._rows.cancel(row)
            self._ledger.interrupt(row.number)

    def _cancel_rows(self) -> None:
        for row in self._ledger.in_flight.values():
            self._rows.cancel(row)

    # -- checkpoints

    @property
    def _uploads_are_full(self) -> bool:
        return self._ledger.unlisted >= UPLOADS_MAX

    @property
    def _checkpoint_is_due(self) -> bool:
        return self._ledger.is_due and not self._uploads_are_full

    def _checkpoint(self, *, of_everything: bool = False) -> None:
        if of_everything or self._ledger.carry_over_is_due:
            self._gather()
        checkpoint = self._ledger.take_checkpoint(self._rows.total, of_everything=of_everything)
        if checkpoint is not None:
            self._uploads.put(checkpoint)

    def _flush(self) -> None:
        """Writes all there is, rows in flight included, until that is done or it is time to leave."""
        self._gather()
        self._cancel_rows()
        self._checkpoint(of_everything=not self._orders.is_stopping)
        self._ledger.give_up()
        while self._ledger.unlisted and self._orders.left_s > 0:
            self._note_silence()
            self._handle_next(min(self._orders.left_s, self._config.silence_look_s))

    # -- the end

    def _end(self) -> str:
        if self._orders.is_draining:
            ended = self._retry(lambda: self._endings.hand_back(self.tokens_at_risk()))
            outcome = "handed back"
        elif self._orders.is_stopping:
            ended, outcome = self._retry(self._endings.stop), "stopped"
        else:
            rows_total = self._rows.total
            assert rows_total is not None, "the input was read to its end"
            ended, outcome = self._retry(lambda: self._endings.complete(rows_total)), "done"
        if not ended:
            raise LeaseLost
        if not self._orders.is_draining:
            self._checkpoints.forget_carry_over()
        return outcome

    # -- messages

    def _wait(self) -> None:
        """Waits for a message, at most until the next thing is due; then takes all there are."""
        wait_s = self._orders.stop_in_s
        if self._row_timeout_s is not None and (oldest_s := self._ledger.oldest_age_s) is not None:
            wait_s = min(wait_s, self._row_timeout_s - oldest_s)
        if self._may_admit and self._rows.can_admit:
            wait_s = min(wait_s, BUSY_RETRY_S)
        if self._ledger.unlisted or not self._rows.can_admit:
            wait_s = min(wait_s, self._config.silence_look_s)
        if self._ledger.in_flight:
            wait_s = min(wait_s, max(0.0, self._gather_at_s - time.monotonic()))
        if not self._uploads_are_full and (due_in_s := self._ledger.due_in_s) is not None:
            wait_s = min(wait_s, due_in_s)
        while self._handle_next(wait_s) and not self._checkpoint_is_due:
            wait_s = 0.0

    def _handle_next(self, wait_s: float) -> bool:
        """Handles the next message. False: none came in this time, which may be infinite."""
        try:
            message = self._messages.get(timeout=None if wait_s == float("inf") else max(0.0, wait_s))
        except Empty:
            return False
        self._handle(message)
        return True

    def _handle(self, message: Message) -> None:
        match message:
            case RowProgress():
                self._note_progress(message)
            case Failure(error):
                raise error
            case TurnCame(row, result):
                self._rows.turn_came(row, result)
            case Checkpoint():
                self._waits.checkpoint_listed()
                self._ledger.listed(message)
            case Drain():
                self._orders.drain()
            case StopReason():
                self._orders.stop()

    def _retry(self, act: Callable[[], T]) -> T:
        """Retries what the database or our own store fails on; messages are handled meanwhile.

        Raises non-retryable errors, or any error once it is time to leave.
        """
        faults = 0
        while True:
            try:
                done = act()
                self._waits.results_came()
                return done
            except (DatabaseUnavailable, StorageError) as error:
                if not may_pass(error) or self._orders.left_s <= 0:
                    raise
                log.warning("shard waits", extra={"action": "shard_waits", "reason": error.message})
                self._waits.for_results(error)
            faults += 1
            self._handle_until(time.monotonic() + self._config.fault_delay_s(faults, self._name))

    def _handle_until(self, end_s: float) -> None:
        while (left_s := min(end_s - time.monotonic(), self._orders.left_s)) > 0:
            if not self._handle_next(left_s):
                return
