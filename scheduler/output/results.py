"""The lines of one shard: exactly one for every row, in input order.

Segments hold results in the order in which rows finished; of two results of a row, the first committed
counts. A shard that ended early has rows without a result: its input is read again for their ids. Lines are
spooled to disk, so that memory does not grow with them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import Counts, Job, Shard, ShardState, StopReason
from nightshift.jobs.ids import derived_id
from nightshift.objectstore import ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.output.row_results import INTERRUPTED, SHARD_GIVEN_UP, NotExecuted, RowResult
from nightshift.output.segments import read_segment
from nightshift.rows.inputs import BadRow, Row, iter_rows
from nightshift.rows.requests import columns_of, custom_id_of
from nightshift.store import Store

SPOOL_BYTES: Final = 16 * 1024 * 1024  # of one shard's results in memory; more go to a temporary file

ToLine = Callable[[RowResult | NotExecuted], bytes]


class Mismatch(Exception):
    """The results do not add up to the input: a fault of ours, which fails the job."""


class InputTrouble(Exception):
    """The input cannot be read again for the ids of rows without a result."""

    def __init__(self, error: InvalidRequest | StorageError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One row's line, newline included, and what is counted of it."""

    succeeded: bool
    data: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Tally:
    """Counts of lines. A row that was never run counts as failed."""

    rows: int = 0
    succeeded: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def counted(self, lines: Iterable[ResultLine]) -> Iterator[ResultLine]:
        """The lines, each counted as it is taken."""
        for line in lines:
            self.rows += 1
            self.succeeded += line.succeeded
            self.prompt_tokens += line.prompt_tokens
            self.completion_tokens += line.completion_tokens
            yield line

    @property
    def counts(self) -> Counts:
        return Counts(self.rows, self.succeeded, self.rows - self.succeeded)


@dataclass(frozen=True)
class Results:
    store: Store
    objects: ObjectStore
    sources: Sources
    line_bytes_max: int  # of an input row

    def lines(self, job: Job, shard: Shard, to_line: ToLine) -> Iterator[ResultLine]:
        """A line for every row of the shard, in input order. All of its results are read before the first.

        Raises Mismatch, StorageError for results that cannot be read, and InputTrouble.
        """
        with SpooledTemporaryFile(max_size=SPOOL_BYTES) as file:
            spool = _LineSpool(file)
            for result in self._results(shard):
                spool.put(result, to_line)
            if shard.state is ShardState.DONE:
                yield from _complete(shard, spool)
            else:
                yield from self._with_gaps(job, shard, spool, to_line)

    def _results(self, shard: Shard) -> Iterator[RowResult]:
        with self.store.snapshot() as tx:
            segments = tx.shards.segments(shard.id)
        for segment in segments:
            yield from read_segment(self.objects, segment)

    def _with_gaps(
        self, job: Job, shard: Shard, spool: "_LineSpool", to_line: ToLine
    ) -> Iterator[ResultLine]:
        """Every row of the input: its result, or that it was not run."""
        reason, error = job.stop_reason or StopReason.FAILED, None
        if job.stop_reason is None:  # the job goes on without this shard
            error = SHARD_GIVEN_UP if job.spec.retry_on_interrupt else INTERRUPTED
        count = 0
        for row in self._rows(job, shard):
            count += 1
            found = spool.take(row.index)
            if found is None:
                missing = NotExecuted(
                    custom_id=custom_id_of(row, job.spec, shard),
                    id=derived_id("batch_req_", f"{job.id}/{shard.shard_no}/{row.index}"),
                    reason=reason,
                    error=error,
                )
                found = ResultLine(False, to_line(missing))
            yield found
        if spool.rows:
            raise Mismatch(f"shard {shard.shard_no} has results for rows that its {count} input rows lack")

    def _rows(self, job: Job, shard: Shard) -> Iterator[Row | BadRow]:
        try:
            source = self.sources.open(shard.uri, job.tenant_id)
            yield from iter_rows(
                source.store,
                source.key,
                shard,
                columns=columns_of(job.spec, shard),
                line_bytes_max=self.line_bytes_max,
            )
        except (InvalidRequest, StorageError) as error:
            raise InputTrouble(error) from error


def _complete(shard: Shard, spool: "_LineSpool") -> Iterator[ResultLine]:
    """The rows of a shard that is done."""
    rows_total = shard.rows_total or 0
    if spool.rows != set(range(rows_total)):
        raise Mismatch(
            f"shard {shard.shard_no} is done with {rows_total} rows, and {len(spool.rows)} have a result"
        )
    for row in range(rows_total):
        found = spool.take(row)
        assert found is not None, "checked above"
        yield found


class _LineSpool:
    """Lines written in the order in which they come, and read in any other."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[int, _Place] = {}
        self._end = 0

    @property
    def rows(self) -> set[int]:
        """Those whose lines have not been taken."""
        return set(self._places)

    def put(self, result: RowResult, to_line: ToLine) -> None:
        """A row's second result is ignored."""
        if result.row in self._places:
            return
        data = to_line(result)
        self._file.write(data)
        usage = result.usage
        self._places[result.row] = _Place(
            self._end, len(data), result.succeeded, usage.prompt_tokens, usage.completion_tokens
        )
        self._end += len(data)

    def take(self, row: int) -> ResultLine | None:
        place = self._places.pop(row, None)
        if place is None:
            return None
        self._file.seek(place.offset)
        data = self._file.read(place.size_bytes)
        return ResultLine(place.succeeded, data, place.prompt_tokens, place.completion_tokens)


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size_bytes: int
    succeeded: bool
    prompt_tokens: int
    completion_tokens: int
