"""The rows of one shard that wait to be run: from its reader to the engine, and back to be tried again."""

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from nightshift import endpoints
from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.rows.requests import place_of
from nightshift.endpoints.results import Result
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import BulkClaim, Face
from nightshift.objectstore.verdicts import IMAGE
from nightshift.process.tracing.spans import NO_SPAN
from workers.leases.isolation import Watch, dead_row_result
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress, refusal, timed_out
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.reader import InputUnreadable, Reader
from workers.shard.row import RowState, ShardRow
from workers.shard.run_once import WAITING_MAX, Turn
from workers.traces import ShardTrace

log = logging.getLogger(__name__)

WAITING_CHARS_MAX: Final = 4 * 1024 * 1024  # in the texts of rows that wait; one row may have more
ROW_TRIES_MAX: Final = 3  # for a row that the engine breaks off, before that is its result


class RowQueue:
    """The rows of a shard on their way to the engine. Not thread-safe; `on_progress` is called from the
    engine's thread.
    """

    def __init__(
        self,
        claim: BulkClaim,
        dependencies: ShardDependencies,
        config: ShardConfig,
        watch: Watch,
        *,
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
        begin_span = (lambda: NO_SPAN) if trace is None else trace.reads
        self._reader = Reader(claim, dependencies, config, on_rows=on_rows, begin_span=begin_span)
        self._once = dependencies.once
        self._earlier = earlier
        self._on_progress = on_progress
        self._on_turn = on_turn
        self._endpoint = endpoints.get(claim.job.spec.endpoint)
        self._head = ShardHead.of_shard(claim.job, claim.shard.shard_no)
        self._first: deque[ShardRow] = deque()  # rows that go before those of the reader
        self._waiting: dict[int, ShardRow] = {}  # rows whose request another row runs, by number
        self._waiting_chars = 0
        self._turns: dict[int, Turn] = {}  # of rows that wait for others, or that others may wait for
        self._cancelled_in: ModelServer | None = None  # which may still have rows

    # -- to the engine

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._reader.start()

    def open(self, done: Collection[int]) -> None:
        """Reads the input, but for the rows that are done."""
        self._reader.open(done)

    @property
    def total(self) -> int | None:
        """Known once the input has been read to its end and no row waits to begin."""
        return None if self._first else self._reader.total

    @property
    def has_waiting(self) -> bool:
        """Whether rows are to be admitted, read or not."""
        return bool(self._first) or bool(self._waiting) or self._reader.has_more

    @property
    def num_waiting(self) -> int:
        """Rows that wait for others with the same request."""
        return len(self._waiting)

    @property
    def left(self) -> int | None:
        """Rows to be admitted that wait for no other. None: more may be read than are known."""
        unread = self._reader.left
        return None if unread is None else unread + len(self._first)

    @property
    def can_admit(self) -> bool:
        """Whether `admit_next` has a row."""
        return bool(self._first) or (self._reader.has_more and not self._reader.is_behind)

    @property
    def silent_s(self) -> float:
        """Seconds for which the input's store has not answered the request that is under way; 0: there is
        none.
        """
        return self._reader.silent_s

    def admit_next(self) -> ShardRow | RowResult | None:
        """Gives one row to the engine, or returns its result if it is not to be run. None: not now.

        Raises LeaseLost. The caller notes what it got.
        """
        while (row := self._next()) is not None:
            admitted = self._admit(row)
            if row.state is RowState.WAITING:
                continue
            if admitted is None:
                self._first.appendleft(row)
            return admitted
        return None

    def check_input(self) -> None:
        """Raises InputUnreadable where the rows after those that were admitted cannot be read."""
        self._reader.check()

    @property
    def problem(self) -> str | None:
        """The reason why the job's model runs nothing."""
        server = self._models.find(self._claim.job.model, self._endpoint)
        return None if server is None else server.problem

    def on_admission_blocked(self) -> None:
        self._watch.on_admission_blocked()

    # -- back from the engine

    def ended(self, row: ShardRow, progress: Progress) -> RowResult | None:
        """The engine has ended a row. None: it broke the row off, which is admitted again.

        Raises InputUnreadable where the store of an image that it names may give it later.
        """
        self._watch.finished(row.number)
        if progress.fault is not None:
            raise InputUnreadable(progress.fault, IMAGE)
        row.tries -= progress.is_returned
        row.breaks = progress.breaks
        if progress.failed is not None and (row.tries < ROW_TRIES_MAX or progress.is_returned):
            row.state = RowState.READ
            self._first.appendleft(row)
            return None
        return self._finished(row, progress.last_result)

    def timed_out(self, row: ShardRow, timeout_s: int) -> RowResult:
        """Takes a row out of the engine that has been there for too long."""
        self._watch.finished(row.number)
        self.cancel(row)
        return self._finished(row, timed_out(timeout_s))

    def turn_came(self, number: int, result: RowResult | None) -> None:
        """The row that this one waited for has ended with this result, or this one is to be run."""
        row = self._waiting.pop(number)
        self._waiting_chars -= row.chars
        row.state, row.known = RowState.READ, result
        if not self._turns[number].runs:
            del self._turns[number]
            row.is_shareable = False  # it runs, if it must, for itself alone
        self._first.append(row)

    def cancel(self, row: ShardRow) -> None:
        assert row.server is not None, "the engine has it"
        self._cancelled_in = row.server  # a job has one model
        row.server.cancel(row.inference_id)

    def close(self) -> None:
        """Every admitted row has ended or is cancelled. A suspected row may be alone in the engine only once
        that has taken the cancelled ones out.
        """
        self._reader.close()
        while self._turns:
            self._once.leave(self._turns.popitem()[1])
        if self._cancelled_in is None:
            self._watch.close()
        else:
            self._cancelled_in.after_cancelled(self._watch.close)

    # -- one row

    def _next(self) -> ShardRow | None:
        if self._first:
            return self._first.popleft()
        if len(self._waiting) >= WAITING_MAX or self._waiting_chars >= WAITING_CHARS_MAX:
            return None
        return self._reader.take()

    def _admit(self, row: ShardRow) -> ShardRow | RowResult | None:
        """The row in the engine or its result. None: it waits for another row, or is to be offered again."""
        if self._watch.is_dead(row.number):
            self._watch.name_dead(row.number, row.custom_id)
            return self._finished(row, dead_row_result())
        if row.refused is not None:
            return self._finished(row, refusal(row.refused))
        if row.known is None and self._is_shared(row):
            self._take_turn(row)
        if row.known is not None:
            row.state = RowState.ENDED
            return row.known.reused(self._head, row.number, row.custom_id, row.kept)
        if row.state is RowState.WAITING:
            return None
        try:
            return row if self._submit(row) else None
        except (Busy, DatabaseUnavailable):
            return None
        except InvalidRequest as error:
            return self._finished(row, refusal(error))

    def _is_shared(self, row: ShardRow) -> bool:
        """Whether another row of the job may have its result. A watched shard's rows begin in order."""
        is_shared = row.is_shareable and row.digest is not None and row.number not in self._turns
        return is_shared and not self._claim.crash_history.is_watched

    def _take_turn(self, row: ShardRow) -> None:
        """Has the row run, wait for the one that does, or take over its result."""
        assert row.digest is not None, "it is shared"
        turn = self._once.begin((self._claim.job.id, row.digest), row.number, self._on_turn)
        if isinstance(turn, RowResult):
            row.known = turn
            return
        self._turns[row.number] = turn
        if not turn.runs:
            row.state, row.tokens = RowState.WAITING, None  # it is not likely to need them
            self._waiting[row.number] = row
            self._waiting_chars += row.chars

    def _submit(self, row: ShardRow) -> bool:
        """Hands the row to its model. False: not now."""
        assert row.request is not None, "it can be run"
        job, number, tries = self._claim.job, row.number, row.tries + 1
        identity = self._head.identity(number)
        inference_id = f"{identity.name}@{self._claim.lease.term}" + (f".{tries}" if tries > 1 else "")
        inference = Inference(
            id=inference_id,
            endpoint=self._endpoint,
            request=row.request,
            identity=identity,
            priority=job.priority,
            listener=lambda progress: self._on_progress(number, inference_id, progress),
            carry_over=self._earlier(number),
            group=job.id,
            tokens=row.tokens,
            tenant_id=job.tenant_id,
            row_object=row.object,
            body=row.body,
            is_streamed=False,
            breaks=row.breaks,
        )
        server = self._models.get(row.request.model)
        if not self._watch.admit(number):
            return False
        try:
            self._models.submit(inference)
        except BaseException:
            self._watch.withdraw(number)
            raise
        row.inference_id, row.server, row.tries = inference_id, server, tries
        if log.isEnabledFor(logging.DEBUG):
            shard_no = self._claim.shard.shard_no
            log.debug("row admitted", extra={"action": "row_admitted", "shard_no": shard_no, "row": number})
        return True

    def _finished(self, row: ShardRow, result: Result) -> RowResult:
        """A row's own result, told to the rows that wait for it."""
        row.state = RowState.ENDED
        if not result.succeeded and self._claim.job.face is Face.NATIVE:
            result = _placed(result, place_of(row.number, self._claim.shard, row.object))
        recorded = RowResult.from_result(self._head, row.number, row.custom_id, result, row.kept, row.digest)
        turn = self._turns.pop(row.number, None)
        if turn is not None and recorded.succeeded:
            self._once.ended(turn, replace(recorded, kept=None, custom_id=""))
        elif turn is not None:
            self._once.failed(turn)
        return recorded


def _placed(result: Result, place: str) -> Result:
    """An error that says where its row is. (Rows of a batch have ids of their own.)"""
    assert result.body is not None, "errors have bodies"
    error = result.body["error"]
    return replace(result, body={"error": {**error, "message": f"{error['message']}{place}"}})
