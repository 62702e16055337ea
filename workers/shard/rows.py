"""The rows of one shard: read from the input, turned into requests, given to the engine."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final

from nightshift import endpoints
from nightshift.endpoints.generation import GenerationRequest
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Result
from nightshift.errors import DatabaseUnavailable, InvalidRequest, StorageError
from nightshift.jobs import BulkClaim
from nightshift.objectstore.sources import Sources
from nightshift.output.row_results import RowResult, ShardHead
from nightshift.rows.inputs import BadRow, Row, iter_rows
from nightshift.rows.requests import RowProblem, RowRequest, columns_of, to_request
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress, breakdown, refusal, timed_out
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.serving.models import Models
from workers.shard.in_flight import AdmittedRow
from workers.shard.isolation import Watch

log = logging.getLogger(__name__)

ROW_TRIES_MAX: Final = 3  # of a row that the engine breaks off, before that is its result


class InputUnreadable(Exception):
    """The rows cannot be read."""

    def __init__(self, error: StorageError | InvalidRequest) -> None:
        super().__init__(error.message)
        self.error = error


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
    ) -> None:
        """`earlier`: what an earlier lease left of a row. `on_progress`: of a row, by its inference id."""
        self.total: int | None = None  # known once the input has been read to its end
        self._claim = claim
        self._sources = sources
        self._models = models
        self._watch = watch
        self._line_bytes_max = line_bytes_max
        self._earlier = earlier
        self._on_progress = on_progress
        self._head = ShardHead.of(claim.job, claim.shard.shard_no)
        self._unread: Iterator[Row | BadRow] = iter(())
        self._next: Row | BadRow | None = None  # read, and not admitted
        self._again: deque[AdmittedRow] = deque()  # broken off by the engine
        self._cancelled_in: ModelServer | None = None  # which may still have rows

    # -- to the engine

    def open(self, done: Collection[int]) -> None:
        """Read the input, but for the rows that are done. Raises InputUnreadable."""
        self._unread = self._read(done)
        self.advance()

    @property
    def has_waiting(self) -> bool:
        return self._next is not None or bool(self._again)

    def admit_next(self) -> AdmittedRow | RowResult | None:
        """Give one row to the engine, or return its result if it cannot be run. None: not now.

        Raises LeaseLost. The caller notes what it got, then calls `advance`.
        """
        if self._again:
            again = self._again[0]
            admitted = self._try(again.row, again.request, again.tries + 1)
            if admitted is not None:
                self._again.popleft()
            return admitted
        assert self._next is not None, "there is one waiting"
        admitted = self._admit(self._next)
        if admitted is not None:
            self._next = None
        return admitted

    def advance(self) -> None:
        """Read the next row. Raises InputUnreadable."""
        if self._next is None:
            self._next = next(self._unread, None)

    def on_admission_blocked(self) -> None:
        self._watch.on_admission_blocked()

    # -- back from the engine

    def ended(self, admitted: AdmittedRow, progress: Progress) -> RowResult | None:
        """The engine has ended a row. None: it broke the row off, which is admitted again."""
        self._watch.finished(admitted.row)
        if progress.result is not None:
            return self._result(admitted.row, admitted.request, progress.result)
        assert progress.failed is not None, "it has ended"
        if admitted.tries < ROW_TRIES_MAX:
            self._again.append(admitted)
            return None
        return self._result(admitted.row, admitted.request, breakdown(progress.failed))

    def timed_out(self, admitted: AdmittedRow, timeout_s: int) -> RowResult:
        """Take a row out of the engine that has been there for too long."""
        self._watch.finished(admitted.row)
        self.cancel(admitted)
        return self._result(admitted.row, admitted.request, timed_out(timeout_s))

    def cancel(self, admitted: AdmittedRow) -> None:
        self._cancelled_in = admitted.server  # a job has one model
        admitted.server.cancel(admitted.inference_id)

    def close(self) -> None:
        """Every admitted row has ended or is cancelled. A suspected row may be alone in the engine only once
        that has taken the cancelled ones out.
        """
        if self._cancelled_in is None:
            self._watch.close()
        else:
            self._cancelled_in.after_cancelled(self._watch.close)

    # -- one row

    def _read(self, done: Collection[int]) -> Iterator[Row | BadRow]:
        """The rows that are not done. At the end, `total` is known."""
        shard = self._claim.shard
        columns = columns_of(self._claim.job.spec, shard)
        count = 0
        try:
            source = self._sources.open(shard.uri, self._claim.lease.tenant_id)
            for row in iter_rows(
                source.store, source.key, shard, columns=columns, line_bytes_max=self._line_bytes_max
            ):
                count += 1
                if row.index not in done:
                    yield row
        except (StorageError, InvalidRequest) as error:  # the last: it is not what its name says
            raise InputUnreadable(error) from error
        self.total = count

    def _admit(self, row: Row | BadRow) -> AdmittedRow | RowResult | None:
        request = to_request(row, self._claim.job.spec, self._claim.shard)
        if (refused := self._watch.refusal(row.index, request.custom_id)) is not None:
            return self._result(row.index, request, refused)
        if not isinstance(request, RowRequest):
            error = InvalidRequest(request.message, param=request.param, code=request.code)
            return self._result(row.index, request, refusal(error))
        return self._try(row.index, request, tries=1)

    def _try(self, row: int, request: RowRequest, tries: int) -> AdmittedRow | RowResult | None:
        try:
            return self._submit(row, request, tries)
        except (Busy, DatabaseUnavailable):
            return None
        except InvalidRequest as error:
            return self._result(row, request, refusal(error))

    def _submit(self, row: int, request: RowRequest, tries: int) -> AdmittedRow | None:
        job = self._claim.job
        endpoint = endpoints.get(job.spec.endpoint)
        parsed = endpoint.parse(request.body)
        if parsed.model != job.model:
            raise InvalidRequest(
                f"This job runs '{job.model}'; the row asks for '{parsed.model}'.",
                param="model",
                code="mismatched_model",
            )
        identity = self._head.identity(row)
        inference_id = f"{identity.name}@{self._claim.lease.term}" + (f".{tries}" if tries > 1 else "")
        inference = Inference(
            id=inference_id,
            endpoint=endpoint,
            request=parsed,
            identity=identity,
            priority=job.priority,
            listener=lambda progress: self._on_progress(row, inference_id, progress),
            carry_over=self._earlier(row),
            group=job.id,
        )
        server = self._models.get(parsed.model)
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
        tokens_max = _tokens_max(parsed, server.model.context_length)
        return AdmittedRow(inference_id, row, request, server, parsed.num_choices, tries, tokens_max)

    def _result(self, row: int, request: RowRequest | RowProblem, result: Result) -> RowResult:
        return RowResult.of(self._head, row, request.custom_id, result, request.kept)


def _tokens_max(request: ModelRequest, context_length: int) -> int | None:
    """That a request's choices can have together. None: it generates none."""
    if not isinstance(request, GenerationRequest):
        return None
    return request.num_choices * (request.output_tokens_max or context_length)
