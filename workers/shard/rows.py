"""The rows of one shard: taken from its reader, given to the engine."""

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from nightshift import endpoints
from nightshift.endpoints.generation import GenerationRequest
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Result
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import BulkClaim
from nightshift.objectstore.sources import Sources
from nightshift.output.row_results import RowResult, ShardHead
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress, breakdown, refusal, timed_out
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.serving.models import Models
from workers.shard.in_flight import AdmittedRow
from workers.shard.isolation import Watch
from workers.shard.reading import Reader, ReadRow

log = logging.getLogger(__name__)

ROW_TRIES_MAX: Final = 3  # of a row that the engine breaks off, before that is its result


class ShardRows:
    """Not thread-safe; `on_progress` is called from the engine's thread."""

    def __init__(
        self,
        claim: BulkClaim,
        sources: Sources,
        models: Models,
        watch: Watch,
        *,
        line_bytes_max: int,
        earlier: Callable[[int], CarryOver | None],
        on_progress: Callable[[int, str, Progress], None],
        on_rows: Callable[[], None],
    ) -> None:
        """`earlier`: what an earlier lease left of a row. `on_progress`: of a row, by its inference id.
        `on_rows`: rows have been read.
        """
        self._claim = claim
        self._models = models
        self._watch = watch
        self._reader = Reader(claim, sources, models, line_bytes_max=line_bytes_max, on_rows=on_rows)
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
        return bool(self._again) or self._next is not None or self._reader.has_more

    @property
    def is_behind(self) -> bool:
        """Whether no row that waits has been read."""
        return not self._again and self._next is None and self._reader.is_behind

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
        if self._next is None:
            self._next = self._reader.take()
        if self._next is None:
            return None
        admitted = self._admit(self._next)
        if admitted is not None:
            self._next = None
        return admitted

    def check_input(self) -> None:
        """Raises InputUnreadable where the rows after those that were admitted cannot be read."""
        self._reader.check()

    def on_admission_blocked(self) -> None:
        self._watch.on_admission_blocked()

    # -- back from the engine

    def ended(self, admitted: AdmittedRow, progress: Progress) -> RowResult | None:
        """The engine has ended a row. None: it broke the row off, which is admitted again."""
        self._watch.finished(admitted.row)
        if progress.result is not None:
            return self._result(admitted.read, progress.result)
        assert progress.failed is not None, "it has ended"
        if admitted.tries < ROW_TRIES_MAX:
            self._again.append(admitted)
            return None
        return self._result(admitted.read, breakdown(progress.failed))

    def timed_out(self, admitted: AdmittedRow, timeout_s: int) -> RowResult:
        """Take a row out of the engine that has been there for too long."""
        self._watch.finished(admitted.row)
        self.cancel(admitted)
        return self._result(admitted.read, timed_out(timeout_s))

    def cancel(self, admitted: AdmittedRow) -> None:
        self._cancelled_in = admitted.server  # a job has one model
        admitted.server.cancel(admitted.inference_id)

    def close(self) -> None:
        """Every admitted row has ended or is cancelled. A suspected row may be alone in the engine only once
        that has taken the cancelled ones out.
        """
        self._reader.close()
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
        return self._try(read, tries=1)

    def _try(self, read: ReadRow, tries: int) -> AdmittedRow | RowResult | None:
        try:
            return self._submit(read, tries)
        except (Busy, DatabaseUnavailable):
            return None
        except InvalidRequest as error:
            return self._result(read, refusal(error))

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
        tokens_max = _tokens_max(read.parsed, server.model.context_length)
        return AdmittedRow(inference_id, row, read, server, read.parsed.num_choices, tries, tokens_max)

    def _result(self, read: ReadRow, result: Result) -> RowResult:
        return RowResult.of(self._head, read.row, read.custom_id, result, read.kept)


def _tokens_max(request: ModelRequest, context_length: int) -> int | None:
    """That a request's choices can have together. None: it generates none."""
    if not isinstance(request, GenerationRequest):
        return None
    return request.num_choices * (request.output_tokens_max or context_length)
