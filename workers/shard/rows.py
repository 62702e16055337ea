"""The rows of one shard on their way: out of the input, into the engine, into the ledger when they end."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final

from nightshift.endpoints.requests import parse_request
from nightshift.errors import DatabaseUnavailable, InvalidRequest, StorageError
from nightshift.jobs import Answer, BulkClaim
from nightshift.objectstore.sources import Sources
from nightshift.processes import failpoints
from nightshift.rows.inputs import BadRow, Row, iter_rows
from nightshift.rows.outputs import RowResult
from nightshift.rows.requests import RowRequest, to_request
from workers.serving.inference import Identity, Progress, breakdown, refusal
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.serving.models import Models
from workers.shard.in_flight import InFlight
from workers.shard.ledger import Ledger
from workers.shard.suspicion import Watch

log = logging.getLogger(__name__)

ROW_TRIES_MAX: Final = 3  # of a row that the engine breaks off, before that is its result


class InputTrouble(Exception):
    """The rows cannot be read."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(error.message)
        self.error = error


class ShardRows:
    """Not thread-safe: it is its shard's runner's. `on_progress` alone is called from the engine's thread."""

    def __init__(
        self,
        claim: BulkClaim,
        sources: Sources,
        models: Models,
        ledger: Ledger,
        watch: Watch,
        *,
        line_bytes_max: int,
        on_progress: Callable[[str, Progress], None],
    ) -> None:
        self.total: int | None = None  # known once the input has been read to its end
        self._claim = claim
        self._sources = sources
        self._models = models
        self._ledger = ledger
        self._watch = watch
        self._line_bytes_max = line_bytes_max
        self._on_progress = on_progress
        self._name = f"{claim.job.id}/{claim.shard.shard_no}"
        self._unread: Iterator[Row | BadRow] = iter(())
        self._next: Row | BadRow | None = None  # read, and not given to the engine
        self._cancelled_in: ModelServer | None = None  # which may still have rows
        self._again: deque[InFlight] = deque()  # broken off by the engine, and to be given to it once more

    def open(self, done: Collection[int]) -> None:
        """Read the input, but for the rows that are done. Raises InputTrouble, as `admit_next` does."""
        self._unread = self._read(done)
        self._next = next(self._unread, None)

    @property
    def has_waiting(self) -> bool:
        return self._next is not None or bool(self._again)

    def admit_next(self) -> bool:
        """Give one row to the engine, or record at once why it cannot be run. False: not now."""
        if self._again:
            again = self._again[0]
            admitted = self._try(again.row, again.request, again.tries + 1)
            if admitted:
                self._again.popleft()
            return admitted
        assert self._next is not None, "there is one waiting"
        admitted = self._admit(self._next)
        if admitted:
            self._next = next(self._unread, None)
        return admitted

    def hear(self, inference_id: str, progress: Progress) -> None:
        """More of a row, or its end."""
        failpoints.hit("worker.row_heard")
        flight = self._ledger.in_flight.get(inference_id)
        if flight is None:
            return
        self._ledger.hear(flight, progress)
        if progress.failed is None and progress.answer is None:
            return
        del self._ledger.in_flight[inference_id]
        self._watch.finished(flight.row)
        if progress.answer is not None:
            self._record(flight.row, flight.request.custom_id, progress.answer)
        elif flight.tries < ROW_TRIES_MAX:
            self._again.append(flight)
        else:
            assert progress.failed is not None, "it has ended"
            self._record(flight.row, flight.request.custom_id, breakdown(progress.failed))

    def on_admission_blocked(self) -> None:
        """No row can be begun for now."""
        self._watch.on_admission_blocked()

    def cancel_all(self) -> None:
        for inference_id, flight in self._ledger.in_flight.items():
            self._cancelled_in = flight.server  # a job has one model
            flight.server.cancel(inference_id)

    def close(self) -> None:
        """Nothing of this shard is to be in the engine any more. Whoever wants to be alone there waits until
        nothing is.
        """
        self.cancel_all()
        if self._cancelled_in is None:
            self._watch.close()
        else:
            self._cancelled_in.after_cancelled(self._watch.close)

    def _read(self, done: Collection[int]) -> Iterator[Row | BadRow]:
        """The shard's rows that no listed segment has. At the end, the number of all rows is known."""
        shard = self._claim.shard
        count = 0
        try:
            source = self._sources.open(shard.uri, self._claim.lease.tenant_id)
            for row in iter_rows(source.store, source.key, shard, line_bytes_max=self._line_bytes_max):
                count += 1
                if row.index not in done:
                    yield row
        except StorageError as error:
            raise InputTrouble(error) from error
        self.total = count

    def _admit(self, row: Row | BadRow) -> bool:
        request = to_request(row, self._claim.job.spec, self._claim.shard)
        if (refused := self._watch.refuses(row.index, request.custom_id)) is not None:
            self._record(row.index, request.custom_id, refused)
            return True
        if not isinstance(request, RowRequest):
            error = InvalidRequest(request.message, param=request.param, code=request.code)
            self._record(row.index, request.custom_id, refusal(error))
            return True
        return self._try(row.index, request, tries=1)

    def _try(self, row: int, request: RowRequest, tries: int) -> bool:
        try:
            return self._submit(row, request, tries)
        except (Busy, DatabaseUnavailable):
            return False
        except InvalidRequest as error:
            self._record(row, request.custom_id, refusal(error))
            return True

    def _submit(self, row: int, request: RowRequest, tries: int) -> bool:
        job = self._claim.job
        parsed = parse_request(job.spec.endpoint, request.body)
        if parsed.model != job.model:
            raise InvalidRequest(
                f"This job runs '{job.model}'; the row asks for '{parsed.model}'.",
                param="model",
                code="mismatched_model",
            )
        identity = self._identity(row)
        inference_id = f"{identity.name}@{self._claim.lease.term}" + (f".{tries}" if tries > 1 else "")
        so_far = self._ledger.left.get(row)
        inference = Inference(
            id=inference_id,
            request=parsed,
            identity=identity,
            priority=job.priority,
            listener=lambda progress: self._on_progress(inference_id, progress),
            carry_over=so_far,
            group=job.id,
        )
        server = self._models.get(parsed.model)
        if not self._watch.admit(row):
            return False
        try:
            self._models.submit(inference)
        except BaseException:
            self._watch.withdraw(row)
            raise
        flight = InFlight(row, request, server, parsed.num_choices, so_far, tries)
        self._ledger.begin(inference_id, flight)
        shard_no = self._claim.shard.shard_no
        log.debug("row admitted", extra={"action": "row_admitted", "shard_no": shard_no, "row": row})
        return True

    def _record(self, row: int, custom_id: str, answer: Answer) -> None:
        identity = self._identity(row)
        self._ledger.finish(
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

    def _identity(self, row: int) -> Identity:
        return Identity(f"{self._name}/{row}", int(self._claim.job.created_at.timestamp()))
