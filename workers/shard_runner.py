"""Runs one shard under its lease: rows in, results checkpointed, shard done.

One thread a shard and one inbox: finished rows, orders and bad news all arrive there, and everything is
decided in `_work`, in order. Rows are read only as fast as the engine takes them and results leave the
memory with every segment, so a shard costs the same however many rows it has.

    input ──► _admit ──► engine ──► inbox ──► _checkpoint
                 ▲                    │
                 └── rows in flight ◄─┘
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Final

from nightshift import failpoints
from nightshift.errors import DatabaseUnavailable, InvalidRequest, NightshiftError, StorageError
from nightshift.jobs import Answer, BulkClaim, StopReason
from nightshift.objectstore import ObjectStore
from nightshift.rows.inputs import BadRow, Row, iter_rows
from nightshift.rows.outputs import RowResult
from nightshift.rows.requests import RowRequest, to_request
from nightshift.schemas import parse_request
from nightshift.sources import Sources
from nightshift.store import Store
from workers.carry_over import CarryOver, ChoiceSoFar
from workers.heartbeat import Heartbeat
from workers.inference import Identity, Progress, breakdown, refusal
from workers.model_server import Busy, Inference, ModelServer
from workers.models import Models
from workers.segments import Checkpoints, LeaseLost
from workers.suspicion import Isolation, watch

log = logging.getLogger(__name__)

BUSY_RETRY_S: Final = 0.2  # how long to wait before offering a row again to a model that took none
STORAGE_RETRY_S: Final = 30  # a shard whose input or output cannot be reached is left alone for this long


@dataclass(frozen=True)
class ShardConfig:
    """Limits of one running shard."""

    rows_in_flight_max: int  # inside the engine at once
    segment_rows: int  # a checkpoint after so many finished rows …
    segment_interval_s: float  # … or so long after the first of them
    stop_grace_s: float  # rows in flight may finish for so long after an order to stop
    line_bytes_max: int  # one input row


@dataclass(frozen=True)
class Rooms:
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


class _Drain:
    """Leave: hand the shard back with everything that is finished, and what is not as tokens so far."""


class _Lost:
    """The lease is gone."""


_Message = _Heard | _Drain | _Lost | StopReason


@dataclass
class _InFlight:
    row: int
    custom_id: str
    server: ModelServer
    num_choices: int
    choices: dict[int, ChoiceSoFar] = field(default_factory=dict)

    @property
    def carry_over(self) -> CarryOver:
        choices = [self.choices.get(index, ChoiceSoFar()) for index in range(self.num_choices)]
        return CarryOver(choices, self.server.made_by)


class ShardRunner:
    """One lease of one shard, from claim to its end. Start it once."""

    def __init__(
        self, claim: BulkClaim, rooms: Rooms, config: ShardConfig, on_end: Callable[["ShardRunner"], None]
    ) -> None:
        self.claim = claim
        self._rooms = rooms
        self._config = config
        self._on_end = on_end
        self._checkpoints = Checkpoints(claim, rooms.store, rooms.objects)
        self._watch = watch(claim, rooms.store, rooms.isolation)
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._in_flight: dict[str, _InFlight] = {}
        self._results: list[RowResult] = []  # finished, not checkpointed
        self._oldest_result_s = 0.0
        self._carry_over: dict[int, CarryOver] = {}
        self._rows_total: int | None = None  # known once the input has been read to its end
        self._is_draining = False
        self._stop_at_s: float | None = None  # when rows still in flight are given up
        self._thread = threading.Thread(target=self._run, name=f"shard-{claim.shard.shard_no}", daemon=True)

    # -- orders, from any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        self._inbox.put(_Drain())

    def lease_lost(self) -> None:
        self._inbox.put(_Lost())

    def stop_requested(self, reason: StopReason) -> None:
        self._inbox.put(reason)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. False: it is still running."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        lease = self.claim.lease
        started_s = time.monotonic()
        try:
            outcome = self._work()
        except LeaseLost:
            outcome = "lost"
        except DatabaseUnavailable as error:
            outcome = f"abandoned until its lease expires: {error.message}"
        except StorageError as error:
            outcome = self._postpone(error)
        except NightshiftError as error:
            outcome = self._give_up(error)
        except Exception:
            log.exception("shard broke", extra={"action": "shard_broke", "shard": lease.shard_id})
            outcome = "abandoned until its lease expires"
        finally:
            for inference_id, flight in self._in_flight.items():
                flight.server.cancel(inference_id)
            self._watch.close()
            self._rooms.heartbeat.release(lease)
            self._on_end(self)
        log.info(
            "shard ended",
            extra={
                "action": "shard_ended",
                "outcome": outcome,
                "job": lease.job_id,
                "shard_no": self.claim.shard.shard_no,
                "term": lease.term,
                "rows_total": self._rows_total,
                "seconds": round(time.monotonic() - started_s, 3),
            },
        )

    def _work(self) -> str:
        self._carry_over = self._checkpoints.carry_over()
        rows = self._rows_to_run()
        waiting = next(rows, None)
        while waiting is not None or self._in_flight:
            while waiting is not None and self._may_admit and self._admit(waiting):
                waiting = next(rows, None)
            if self._must_leave:
                break
            self._listen(BUSY_RETRY_S if self._may_admit and waiting is not None else None)
            if self._checkpoint_is_due:
                self._checkpoint()
        self._checkpoint()
        return self._end()

    def _rows_to_run(self) -> Iterator[Row | BadRow]:
        """The shard's rows that no listed segment has. At the end, the number of all rows is known."""
        done = self._checkpoints.rows_done()
        shard = self.claim.shard
        source = self._rooms.sources.open(shard.uri, self.claim.lease.tenant_id)
        count = 0
        for row in iter_rows(source.store, source.key, shard, line_bytes_max=self._config.line_bytes_max):
            count += 1
            if row.index not in done:
                yield row
        self._rows_total = count

    @property
    def _may_admit(self) -> bool:
        has_room = len(self._in_flight) < self._config.rows_in_flight_max
        return has_room and not self._is_draining and self._stop_at_s is None

    @property
    def _must_leave(self) -> bool:
        if self._is_draining:
            return True
        return self._stop_at_s is not None and (not self._in_flight or time.monotonic() >= self._stop_at_s)

    @property
    def _checkpoint_is_due(self) -> bool:
        if not self._results:
            return False
        waited_s = time.monotonic() - self._oldest_result_s
        return len(self._results) >= self._config.segment_rows or waited_s >= self._config.segment_interval_s

    def _admit(self, row: Row | BadRow) -> bool:
        """Give a row to the engine, or record at once why it cannot be run. False: the model takes none
        now.
        """
        job = self.claim.job
        request = to_request(row, job.spec, self.claim.shard)
        if (refused := self._watch.refuses(row.index)) is not None:
            self._record(row.index, request.custom_id, refused)
            return True
        if not self._watch.may_admit(row.index):
            return False
        try:
            if not isinstance(request, RowRequest):
                raise InvalidRequest(request.message, param=request.param, code=request.code)
            return self._submit(row.index, request)
        except Busy:
            return False
        except InvalidRequest as error:
            self._record(row.index, request.custom_id, refusal(error))
            return True

    def _submit(self, row: int, request: RowRequest) -> bool:
        job, shard = self.claim.job, self.claim.shard
        parsed = parse_request(job.spec.endpoint, request.body)
        if parsed.model != job.model:
            raise InvalidRequest(
                f"This job runs '{job.model}'; the row asks for '{parsed.model}'.",
                param="model",
                code="mismatched_model",
            )
        identity = self._identity(row)
        inference_id = f"{identity.name}@{self.claim.lease.term}"
        inference = Inference(
            id=inference_id,
            request=parsed,
            identity=identity,
            priority=job.priority,
            listener=lambda progress: self._inbox.put(_Heard(inference_id, progress)),
            carry_over=self._carry_over.get(row),
            group=job.id,
        )
        server = self._rooms.models.get(parsed.model)
        self._in_flight[inference_id] = _InFlight(row, request.custom_id, server, parsed.num_choices)
        self._watch.admitted([row])
        try:
            self._rooms.models.submit(inference)
        except (Busy, InvalidRequest):
            del self._in_flight[inference_id]
            self._watch.finished(row)
            raise
        self._carry_over.pop(row, None)
        log.debug("row admitted", extra={"action": "row_admitted", "shard_no": shard.shard_no, "row": row})
        return True

    def _identity(self, row: int) -> Identity:
        job = self.claim.job
        return Identity(f"{job.id}/{self.claim.shard.shard_no}/{row}", int(job.created_at.timestamp()))

    def _listen(self, timeout_s: float | None) -> None:
        """Wait for news, but not past the next thing that is due; then take all there is."""
        now_s = time.monotonic()
        waits = [timeout_s] if timeout_s is not None else []
        if self._results:
            waits.append(self._oldest_result_s + self._config.segment_interval_s - now_s)
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
        if isinstance(message, _Drain):
            self._is_draining = True
        elif isinstance(message, StopReason):
            if self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + self._config.stop_grace_s
        else:
            self._note(message.inference_id, message.progress)

    def _note(self, inference_id: str, progress: Progress) -> None:
        failpoints.hit("worker.row_heard")
        flight = self._in_flight.get(inference_id)
        if flight is None:
            return
        flight.choices.setdefault(progress.choice, ChoiceSoFar()).add(
            progress.token_ids, progress.token_logprobs
        )
        answer = breakdown(progress.failed) if progress.failed is not None else progress.answer
        if answer is not None:
            del self._in_flight[inference_id]
            self._watch.finished(flight.row)
            self._record(flight.row, flight.custom_id, answer)

    def _record(self, row: int, custom_id: str, answer: Answer) -> None:
        if not self._results:
            self._oldest_result_s = time.monotonic()
        identity = self._identity(row)
        self._results.append(
            RowResult(
                row=row,
                custom_id=custom_id,
                id=identity.id("batch_req_"),
                request_id=identity.id("req_"),
                status_code=answer.status_code,
                body=answer.body,
                usage=answer.usage,
            )
        )

    def _checkpoint(self) -> None:
        if not self._results:
            return
        if not self._rooms.heartbeat.trusts(self.claim.lease):
            raise LeaseLost
        self._checkpoints.write(self._results, self._rows_total)
        self._results.clear()

    # -- the end ---------------------------------------------------------------------------------------

    def _end(self) -> str:
        if self._is_draining:
            return self._hand_back()
        with self._rooms.store.transaction() as tx:
            if self._stop_at_s is not None:
                ended, outcome = tx.shards.stop_held(self.claim.lease), "stopped"
            else:
                assert self._rows_total is not None, "the input was read to its end"
                ended = tx.shards.complete(self.claim.lease, rows_total=self._rows_total)
                outcome = "done"
        if not ended:
            raise LeaseLost
        return outcome

    def _hand_back(self) -> str:
        unfinished = {flight.row: flight.carry_over for flight in self._in_flight.values()}
        key = self._checkpoints.save_carry_over(self._carry_over | unfinished)
        with self._rooms.store.transaction() as tx:
            if not tx.leases.hand_back(self.claim.lease, key):
                raise LeaseLost
        failpoints.hit("worker.handed_back")
        return "handed back"

    def _postpone(self, error: StorageError) -> str:
        """The object store is away: leave the shard alone for a while. Rows not checkpointed are run
        again.
        """
        with self._rooms.store.transaction() as tx:
            later = tx.now() + timedelta(seconds=STORAGE_RETRY_S)
            tx.leases.delay(self.claim.lease, later)
        return f"postponed: {error.message}"

    def _give_up(self, error: NightshiftError) -> str:
        """No retry can mend this: the input's location is not allowed, or it cannot be read at all."""
        with self._rooms.store.transaction() as tx:
            tx.shards.fail_held(self.claim.lease)
        return f"failed: {error.message}"
