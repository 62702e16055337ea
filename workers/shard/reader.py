"""Reads a shard's rows ahead on a thread of its own, and prepares them in batches: requests, tokens."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import Span

from nightshift import endpoints
from nightshift.bulk.results.row_digests import RowDigests
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.rows.inputs import BadRow, Row
from nightshift.bulk.rows.requests import RowProblem, RowRequest, parse_row, rows_of, to_request
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import DatabaseUnavailable, InvalidRequest, StorageError, StorageUnavailable
from nightshift.jobs import BulkClaim
from nightshift.process.tracing.attributes import ROWS
from nightshift.process.tracing.spans import NO_SPAN, lasting
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.figures import CountedReader
from workers.shard.row import ShardRow

log = logging.getLogger(__name__)

FIRST_BATCH_ROWS: Final = 8  # so that the model soon has work; each next one has twice as many, up to …
BATCH_ROWS: Final = 256
BATCH_CHARS: Final = 1024 * 1024
AHEAD_ROWS: Final = 512  # read, and not taken
AHEAD_CHARS: Final = 4 * 1024 * 1024  # in their texts; one row may have more
LOOK_UP_FAULTS_MAX: Final = 20  # then rows are run as if there were no earlier results
NUMBER_CHARS: Final = 10  # what a number takes, in characters of a text


class InputUnreadable(Exception):
    """The rows cannot be read, or an image that one of them names (`param` is IMAGE)."""

    def __init__(self, error: StorageError | InvalidRequest, param: str = "input") -> None:
        super().__init__(error.message)
        self.error = error
        self.param = param


class Reader:
    """One thread reads and puts rows, the shard's takes them."""

    def __init__(
        self,
        claim: BulkClaim,
        dependencies: ShardDependencies,
        config: ShardConfig,
        *,
        on_rows: Callable[[], None],
        begin_span: Callable[[], Span] = lambda: NO_SPAN,
    ) -> None:
        """`on_rows` is called when `is_behind` has ended. `begin_span`: that of the reading."""
        self._job = claim.job
        self._shard = claim.shard
        self._dependencies = dependencies
        self._config = config
        self._store: CountedReader | None = None  # once it is being read
        self._is_watched = claim.crash_history.is_watched
        self._ahead_rows = 1 if self._is_watched else AHEAD_ROWS
        self._endpoint = endpoints.get(claim.job.spec.endpoint)
        self._server = dependencies.models.find(claim.job.model, self._endpoint)
        self._digests: RowDigests | None = None
        if self._server is not None:
            model = self._server.called(claim.job.model)
            self._digests = RowDigests(claim.job.tenant_id, self._endpoint.route, model)
        self._on_rows = on_rows
        self._begin_span = begin_span
        self._changed = threading.Condition()
        self._done: Collection[int] | None = None  # None: not known yet
        self._ahead: deque[ShardRow] = deque()
        self._ahead_chars = 0
        self._is_full = False
        self._total: int | None = None  # None: the input has not been read to its end
        self._error: Exception | None = None
        self._is_closed = False
        name = f"reader-{claim.shard.shard_no}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- the shard's thread

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def open(self, done: Collection[int]) -> None:
        """Reads all rows but these."""
        with self._changed:
            self._done = done
            self._changed.notify()

    def close(self) -> None:
        """The thread ends with the request to the store that is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    @property
    def total(self) -> int | None:
        """The shard's rows, once all are taken."""
        total = self._total  # first: rows are put before it is known
        return None if self._ahead else total

    @property
    def has_more(self) -> bool:
        return self.left != 0

    @property
    def left(self) -> int | None:
        """Rows that are not taken. None: not known, they are being read."""
        is_read = self._total is not None or self._error is not None  # first, likewise
        return len(self._ahead) if is_read else None

    @property
    def is_behind(self) -> bool:
        """Whether no row is there, and some may come."""
        return self.has_more and not self._ahead

    @property
    def silent_s(self) -> float:
        """Seconds for which the input's store has not answered the request that is under way; 0: there is
        none.
        """
        return 0.0 if self._store is None else self._store.silent_s

    def check(self) -> None:
        """Raises InputUnreadable where the rows after those that were taken cannot be read."""
        if self._error is not None:
            raise self._error

    def take(self) -> ShardRow | None:
        """The next row. None: none is there."""
        with self._changed:
            if not self._ahead:
                return None
            row = self._ahead.popleft()
            self._ahead_chars -= row.chars
            has_room = len(self._ahead) <= self._ahead_rows // 2 and self._ahead_chars <= AHEAD_CHARS // 2
            if self._is_full and has_room:
                self._is_full = False
                self._changed.notify()
            return row

    # -- the reader's thread

    def _run(self) -> None:
        total: int | None = None
        error: Exception | None = None
        try:
            total = self._read()
        except (StorageError, InvalidRequest) as unreadable:  # the last: it is not what its name says
            error = InputUnreadable(unreadable)
        except Exception as unforeseen:  # noqa: BLE001 for the shard's thread to report
            error = unforeseen
        except BaseException as panic:  # noqa: BLE001 of a library in Rust: else the shard would wait for ever
            error = RuntimeError(f"{type(panic).__name__}: {panic}")
        with self._changed:
            self._total, self._error = total, error
        self._on_rows()

    def _read(self) -> int | None:
        """Returns the number of rows. None: it was closed first."""
        with self._changed:
            self._changed.wait_for(lambda: self._done is not None or self._is_closed)
        span = self._begin_span()
        with lasting(span):
            total = self._read_all()
            span.set_attribute(ROWS, total or 0)
            return total

    def _read_all(self) -> int | None:
        done, total, rows_max = self._done or (), 0, min(FIRST_BATCH_ROWS, self._ahead_rows)
        batch: list[ShardRow] = []
        chars = 0
        try:
            for row in self._rows():
                total += 1
                if row.index in done:
                    continue
                batch.append(self._prepared(row))
                chars += batch[-1].chars
                if len(batch) == rows_max or chars >= BATCH_CHARS:
                    if not self._put(batch):
                        return None
                    rows_max = self._next_batch(batch, rows_max)
                    batch, chars = [], 0
        except (StorageError, InvalidRequest):
            self._put(batch)  # they were readable
            raise
        return total if self._put(batch) else None

    def _next_batch(self, batch: Sequence[ShardRow], rows_max: int) -> int:
        """The most rows of the batch after this one: fewer where earlier results are large."""
        if sum(row.chars for row in batch) > AHEAD_CHARS:
            return max(1, len(batch) // 4)
        return min(2 * rows_max, BATCH_ROWS, self._ahead_rows)

    def _rows(self) -> Iterator[Row | BadRow]:
        if self._is_closed:
            return
        source = self._dependencies.sources.open(self._shard.uri, self._job.tenant_id)
        store = self._store = CountedReader(source.store, self._dependencies.storage)
        yield from rows_of(
            store, source.key, self._shard, self._job.spec, line_bytes_max=self._config.line_bytes_max
        )

    def _prepared(self, row: Row | BadRow) -> ShardRow:
        parsed = to_request(row, self._job.spec, self._shard)
        prepared = ShardRow(row.index, parsed.custom_id, parsed.kept, chars=len(parsed.kept or ""))
        try:
            request = prepared.request = self._request_of(parsed)
        except InvalidRequest as error:
            prepared.refused = error
            return prepared
        assert isinstance(parsed, RowRequest), "it has a request"
        prepared.object = parsed.object
        if self._server is not None and self._server.takes_bodies:
            prepared.body = parsed.body
        prepared.chars += held_chars(parsed.body)
        if self._digests is not None and self._server is not None:
            prepared.digest = self._digests.digest_of(parsed.body)
            may_be_sampled = self._job.spec.options.reuse_sampled
            prepared.is_shareable = may_be_sampled or self._server.is_repeatable(request)
        return prepared

    def _request_of(self, parsed: RowRequest | RowProblem) -> ModelRequest:
        if isinstance(parsed, RowProblem):
            raise InvalidRequest(parsed.message, param=parsed.param, code=parsed.code)
        return parse_row(parsed, self._job.spec, self._job.model, self._endpoint.parse)

    def _put(self, batch: Sequence[ShardRow]) -> bool:
        """Waits while enough rows are there. False: it is closed."""
        self._look_up(batch)
        self._tokenize(batch)
        with self._changed:
            was_empty = not self._ahead
            self._ahead.extend(batch)
            self._ahead_chars += sum(row.chars for row in batch)
        if was_empty and batch:
            self._on_rows()
        with self._changed:
            self._is_full = len(self._ahead) >= self._ahead_rows or self._ahead_chars >= AHEAD_CHARS
            self._changed.wait_for(lambda: not self._is_full or self._is_closed)
            return not self._is_closed

    def _look_up(self, batch: Sequence[ShardRow]) -> None:
        """Finds what the job that this one reuses has of these rows."""
        shared = [(row, row.digest) for row in batch if row.is_shareable and row.digest is not None]
        if self._job.spec.reused_job is None or not shared:
            return
        results = self._earlier_results([digest for _, digest in shared])
        for row, digest in shared:
            if (known := results.get(digest)) is not None:
                row.known = known
                row.chars += known.num_chars

    def _earlier_results(self, digests: Sequence[bytes]) -> Mapping[bytes, RowResult]:
        """Waits a while for the database and our own store. Any other fault costs running the rows."""
        faults = 0
        while not self._is_closed and faults < LOOK_UP_FAULTS_MAX:
            try:
                earlier = self._dependencies.earlier_jobs.reused_by(self._job)
                return {} if earlier is None else earlier.find(digests, self._shard.shard_no)
            except (DatabaseUnavailable, StorageUnavailable) as error:
                about = {"action": "reuse_waits", "reason": error.message}
                log.warning("rows wait for earlier results", extra=about)
            except (StorageError, OSError) as error:
                about = {"action": "reuse_failed", "reason": str(error)}
                log.warning("rows are run again", extra=about)
                break
            faults += 1
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closed, self._config.fault_delay_s(faults, self._job.id)
                )
        return {}

    def _tokenize(self, batch: Sequence[ShardRow]) -> None:
        """Tokenises no row of a watched shard: one that kills the process is to be known first."""
        if self._server is None or self._is_watched:
            return  # the model does it, or says what is wrong
        runnable = [(row, row.request) for row in batch if row.request is not None and row.known is None]
        tokens = self._server.tokenize(self._endpoint, [request for _, request in runnable])
        for (row, _), tokens_of_row in zip(runnable, tokens, strict=True):
            row.tokens = tokens_of_row


def held_chars(value: Any) -> int:
    """Estimates what a request's body takes in memory. Its depth was limited when it was read."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + held_chars(child) for name, child in value.items())
    if isinstance(value, list):
        if value and type(value[0]) is int:  # token ids
            return NUMBER_CHARS * len(value)
        return sum(map(held_chars, value))
    return NUMBER_CHARS
