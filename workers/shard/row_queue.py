"""The rows of one shard: taken from its reader, given to the engine."""

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from nightshift import endpoints
from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.rows.requests import place_of
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import BulkClaim, Face
from nightshift.objectstore.verdicts import IMAGE
from nightshift.process.tracing.spans import NO_SPAN
from workers.leases.isolation import Watch
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress, refusal, timed_out
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.shard.config import ShardDependencies
from workers.shard.reader import InputUnreadable, Reader, ReadRow
from workers.shard.row import AdmittedRow
from workers.shard.run_once import WAITING_MAX, Key, Turn
from workers.shard.traces import ShardTrace

log = logging.getLogger(__name__)

WAITING_CHARS_MAX: Final = 4 * 1024 * 1024  # … and of their texts; one row may have more
ROW_TRIES_MAX: Final = 3  # of a row that the engine breaks off, before that is its result


class ShardRows:
    """Not thread-safe; `on_progress` is called from the engine's thread."""

    def __init__(
        self,
        claim: BulkClaim,
        dependencies: ShardDependencies,
        watch: Watch,
        *,
        line_bytes_max: int,
        earlier: Callable[[int], CarryOver | None],
        on_progress: Callable[[int, str, Progress], None],
        on_rows: Callable[[], None],
        on_turn: Callable[[int, RowResult | None], None],
        trace: ShardTrace | None = None,
    ) -> None:
        """`earlier`: what an earlier lease left of a row. `on_progress`: of a row, by its inference id.
        `on_rows`: rows have been read. `on_turn`: another row has run, or not, for which this one waited.
        """
        self._claim = claim
        self._models = dependencies.models
        self._watch = watch
        self._reader = Reader(
            claim,
            dependencies.sources,
            dependencies.models,
            dependencies.earlier_jobs,
            line_bytes_max=line_bytes_max,
            on_rows=on_rows,
            storage=dependencies.storage,
            begin_span=(lambda: NO_SPAN) if trace is None else trace.reads,
        )
        self._once = dependencies.once
        self._on_turn = on_turn
        self._leads: dict[int, Key] = {}  # of rows in the engine, or about to be: others may wait for them
        self._turns: dict[int, Turn] = {}  # of rows that wait for another
        self._waiting: dict[int, ReadRow] = {}  # the same
        self._waiting_chars = 0
        self._ready: deque[tuple[ReadRow, RowResult | None]] = deque()  # they have waited; None: in vain
        self._earlier = earlier
        self._on_progress = on_progress
        self._endpoint = endpoints.get(claim.job.spec.endpoint)
        self._head = ShardHead.of(claim.job, claim.shard.shard_no)
        self._next: ReadRow | None = None  # taken, and not admitted
        self._again: deque[AdmittedRow] = deque()  # broken off by the engine
        self._cancelled_in: ModelServer | None = None  # which may still have rows

    # -- to the engine

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._reader.start()

    def open(self, done: Collection[int]) -> None:
        """Read the input, but for the rows that are done."""
        self._reader.open(done)

    @property
    def total(self) -> int | None:
        """Known once the input has been read to its end."""
        return self._reader.total if self._next is None else None

    @property
    def has_waiting(self) -> bool:
        """Whether rows are to be admitted, read or not."""
        return self.can_admit or bool(self._waiting) or self._reader.has_more

    @property
    def left(self) -> int | None:
        """Rows to be admitted that wait for no other. None: more may be read than are known."""
        unread = self._reader.left
        if unread is None:
            return None
        return unread + len(self._again) + len(self._ready) + (self._next is not None)

    @property
    def can_admit(self) -> bool:
        """Whether `admit_next` has a row."""
        is_held = bool(self._again) or bool(self._ready) or self._next is not None
        return is_held or (self._reader.has_more and not self._reader.is_behind)

    @property
    def silent_s(self) -> float:
        """How long the input's store has not answered the request that is under way; 0: there is none."""
        return self._reader.silent_s

    def admit_next(self) -> AdmittedRow | RowResult | None:
        """Give one row to the engine, or return its result if it cannot be run. None: not now.

        Raises LeaseLost. The caller notes what it got.
        """
        if self._again:
            again = self._again[0]
            admitted = self._try(again.read, again.tries + 1)
            if admitted is not None:
                self._again.popleft()
            return admitted
        if self._ready:
            read, result = self._ready[0]
            admitted = self._try(read, tries=1) if result is None else self._reused(read, result)
            if admitted is not None:
                self._ready.popleft()
            return admitted
        while len(self._waiting) < WAITING_MAX and self._waiting_chars < WAITING_CHARS_MAX:
            if self._next is None:
                self._next = self._reader.take()
            if self._next is None:
                return None
            admitted = self._admit(self._next)
            if admitted is not None:
                self._next = None
                return admitted
            if self._next.row not in self._waiting:
                return None
            self._next = None
        return None

    def check_input(self) -> None:
        """Raises InputUnreadable where the rows after those that were admitted cannot be read."""
        self._reader.check()

    def on_admission_blocked(self) -> None:
        self._watch.on_admission_blocked()

    # -- back from the engine

    def ended(self, admitted: AdmittedRow, progress: Progress) -> RowResult | None:
        """The engine has ended a row. None: it broke the row off, which is admitted again.

        Raises InputUnreadable where the store of an image that it names may give it later.
        """
        self._watch.finished(admitted.row)
        if progress.fault is not None:
            raise InputUnreadable(progress.fault, IMAGE)
        if progress.failed is not None and admitted.tries < ROW_TRIES_MAX:
            self._again.append(admitted)
            return None
        return self._shared(self._result(admitted.read, progress.last_result))

    def timed_out(self, admitted: AdmittedRow, timeout_s: int) -> RowResult:
        """Take a row out of the engine that has been there for too long."""
        self._watch.finished(admitted.row)
        self.cancel(admitted)
        return self._shared(self._result(admitted.read, timed_out(timeout_s)))

    def turn_came(self, row: int, result: RowResult | None) -> None:
        """The row that this one waited for has ended with this result, or this one is to be run."""
        read = self._waiting.pop(row)
        self._waiting_chars -= read.chars
        turn = self._turns.pop(row)
        if turn.leads:
            self._leads[row] = turn.key
        self._ready.append((read, result))

    def cancel(self, admitted: AdmittedRow) -> None:
        self._cancelled_in = admitted.server  # a job has one model
        admitted.server.cancel(admitted.inference_id)

    def close(self) -> None:
        """Every admitted row has ended or is cancelled. A suspected row may be alone in the engine only once
        that has taken the cancelled ones out.
        """
        self._reader.close()
        for key in self._leads.values():
            self._once.leave_off(key)
        while self._turns:
            self._once.leave(self._turns.popitem()[1])
        if self._cancelled_in is None:
            self._watch.close()
        else:
            self._cancelled_in.after_cancelled(self._watch.close)

    # -- one row

    def _admit(self, read: ReadRow) -> AdmittedRow | RowResult | None:
        if (refused := self._watch.refusal(read.row, read.custom_id)) is not None:
            return self._result(read, refused)
        if read.refused is not None:
            return self._result(read, refusal(read.refused))
        if read.earlier is not None:
            return self._reused(read, read.earlier, is_earlier=True)
        if (known := self._known(read)) is not None:
            return known
        if read.row in self._waiting:
            return None
        return self._try(read, tries=1)

    def _known(self, read: ReadRow) -> RowResult | None:
        """The result of another row of the job with the same request. It may be waited for."""
        if not read.is_shareable or read.digest is None or read.row in self._leads:
            return None
        if self._claim.crash_history.is_watched:
            return None  # its rows begin in order
        key, row = (self._claim.job.id, read.digest), read.row
        while (said := self._once.lead(key)) is False:
            turn = self._once.wait(key, lambda result: self._on_turn(row, result))
            if turn is not None:
                read.tokens = None  # it is not likely to need them
                self._turns[row], self._waiting[row] = turn, read
                self._waiting_chars += read.chars
                return None
        if isinstance(said, RowResult):
            return self._reused(read, said)
        self._leads[row] = key
        return None

    def _try(self, read: ReadRow, tries: int) -> AdmittedRow | RowResult | None:
        try:
            return self._submit(read, tries)
        except (Busy, DatabaseUnavailable):
            return None
        except InvalidRequest as error:
            return self._shared(self._result(read, refusal(error)))

    def _submit(self, read: ReadRow, tries: int) -> AdmittedRow | None:
        assert read.parsed is not None, "it can be run"
        job, row = self._claim.job, read.row
        identity = self._head.identity(row)
        inference_id = f"{identity.name}@{self._claim.lease.term}" + (f".{tries}" if tries > 1 else "")
        inference = Inference(
            id=inference_id,
            endpoint=self._endpoint,
            request=read.parsed,
            identity=identity,
            priority=job.priority,
            listener=lambda progress: self._on_progress(row, inference_id, progress),
            carry_over=self._earlier(row),
            group=job.id,
            tokens=read.tokens,
            tenant_id=job.tenant_id,
            row_object=read.object,
            is_streamed=False,
        )
        server = self._models.get(read.parsed.model)
        if not self._watch.admit(row):
            return None
        try:
            self._models.submit(inference)
        except BaseException:
            self._watch.withdraw(row)
            raise
        if log.isEnabledFor(logging.DEBUG):
            shard_no = self._claim.shard.shard_no
            log.debug("row admitted", extra={"action": "row_admitted", "shard_no": shard_no, "row": row})
        tokens_max = _tokens_max(read.parsed, server.context_length)
        return AdmittedRow(inference_id, row, read, server, read.parsed.num_choices, tries, tokens_max)

    def _result(self, read: ReadRow, result: Result) -> RowResult:
        if not result.succeeded and self._claim.job.face is Face.NATIVE:
            result = _placed(result, place_of(read.row, self._claim.shard, read.object))
        return RowResult.of(self._head, read.row, read.custom_id, result, read.kept, read.digest)

    def _reused(self, read: ReadRow, result: RowResult, *, is_earlier: bool = False) -> RowResult:
        return result.reused(self._head, read.row, read.custom_id, read.kept, is_earlier=is_earlier)

    def _shared(self, result: RowResult) -> RowResult:
        """Tell the rows that wait for it."""
        key = self._leads.pop(result.row, None)
        if key is not None and result.succeeded:
            self._once.ended(key, result)
        elif key is not None:
            self._once.failed(key)
        return result


def _tokens_max(request: ModelRequest, context_length: int) -> int | None:
    """That a request's choices can have together. None: it generates none."""
    if not isinstance(request, GenerationRequest):
        return None
    return request.num_choices * (request.output_tokens_max or context_length)


def _placed(result: Result, place: str) -> Result:
    """An error that says where its row is. (Rows of a batch have ids of their own.)"""
    assert result.body is not None, "errors have bodies"
    error = result.body["error"]
    return replace(result, body={"error": {**error, "message": f"{error['message']}{place}"}})
