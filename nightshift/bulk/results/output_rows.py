"""Every row of a shard in input order: its result, or that it was not run.

A shard that ended early has rows without a result: its input is read again for their ids and kept columns, as
far as it can be read where that is known to be the reason. A
file has lines of so many of them (`Listing`); the others are counted, or an input of millions of tiny lines
that was cancelled would become gigabytes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow.compute as pc

from nightshift.bulk.results.row_results import INTERRUPTED, SHARD_GIVEN_UP, NotExecuted
from nightshift.bulk.results.shard_results import ShardResults, Window
from nightshift.bulk.rows.inputs import BadRow, Row
from nightshift.bulk.rows.requests import custom_id_of, kept_of, rows_of
from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import Face, Job, Segment, Shard, ShardState, StopReason
from nightshift.jobs.ids import derived_id
from nightshift.objectstore import ObjectStore
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.store import Store

SHARDS_PAGE: Final = 100  # each may have many objects
MISSING_MAX: Final = 10_000  # rows without a result held at a time …
MISSING_CHARS_MAX: Final = 8 * 1024 * 1024  # … and of what is kept of them; one row may have more
NOT_RUN_LINES_MAX: Final = 50_000  # in a file, some 12 MB; as many as OpenAI takes requests in a batch …
NOT_RUN_CHARS_MAX: Final = 64 * 1024 * 1024  # … and of what is kept of them
FULL_LISTINGS: Final = (
    4  # parts that wait to be written and have all lines; more parts share the lines of these
)


class Mismatch(Exception):
    """The results do not add up to the input: a fault of ours, which fails the job."""


class InputTrouble(Exception):
    """The input cannot be read again for the ids of rows without a result."""

    def __init__(self, error: InvalidRequest | StorageError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Missing:
    """A row that was not run."""

    row: int
    said: NotExecuted

    @property
    def kept_chars(self) -> int:
        return 0 if self.said.kept is None else len(self.said.kept)


@dataclass(frozen=True)
class Chunk:
    """Some rows of a shard. All of them come before those of the next chunk."""

    window: Window | None
    missing: Sequence[Missing] = ()
    unlisted: int = 0  # rows more that were not run, and get no line

    def succeeded(self) -> Window | None:
        return None if self.window is None else _where(self.window, succeeded=True)

    def failed(self) -> "Chunk":
        window = None if self.window is None else _where(self.window, succeeded=False)
        return Chunk(window, self.missing, self.unlisted)


@dataclass
class Listing:
    """The rows that were not run and have a line in a file: the first ones, up to these limits."""

    lines_left: int = field(default_factory=lambda: NOT_RUN_LINES_MAX)
    chars_left: int = field(default_factory=lambda: NOT_RUN_CHARS_MAX)

    @property
    def is_full(self) -> bool:
        return self.lines_left <= 0 or self.chars_left <= 0

    @classmethod
    def shared_by(cls, parts_open: int) -> "Listing":
        """The share of one of a job's unwritten parts; the job's owner decides how many there are."""
        whole, share = cls(), max(1, parts_open / FULL_LISTINGS)
        return cls(max(1, int(whole.lines_left / share)), max(1, int(whole.chars_left / share)))

    def count(self, missing: Missing) -> None:
        self.lines_left -= 1
        self.chars_left -= missing.kept_chars


def shards_of_job(
    store: Store, job_id: str, first_no: int = 0, last_no: int | None = None
) -> Iterator[Shard]:
    """A job's shards in input order, read a page at a time."""
    after_no = first_no - 1
    while last_no is None or after_no < last_no:
        limit = SHARDS_PAGE if last_no is None else min(SHARDS_PAGE, last_no - after_no)
        with store.snapshot() as tx:
            page = tx.shards.of_job(job_id, after_no=after_no, limit=limit)
        if not page:
            return
        yield from page
        after_no = page[-1].shard_no


@dataclass(frozen=True)
class OutputRows:
    """Reads what the shards of jobs came to."""

    store: Store
    objects: ObjectStore
    sources: Sources
    line_bytes_max: int  # in an input row

    def chunks(self, job: Job, shard: Shard, listing: Listing) -> Iterator[Chunk]:
        """Every row of the shard, once. `listing`: of the file that they are written to.

        Raises Mismatch, InputTrouble, and CorruptSegment, ObjectDamaged and StorageError for results that
        cannot be read.
        """
        with ShardResults(self.objects, self._segments(shard)) as results:
            if shard.state is ShardState.DONE:
                _check_complete(shard, results)
                yield from map(Chunk, results.windows())
            else:
                # A batch file was read to its end, and every row of it has a line.
                is_cut = shard.input_error is not None and job.face is Face.NATIVE
                rows, said = self._rows(job, shard, is_cut=is_cut), self._said(job, shard)
                yield from merged(results.windows(), rows, shard.shard_no, said, listing, is_cut=is_cut)

    def _segments(self, shard: Shard) -> Sequence[Segment]:
        with self.store.snapshot() as tx:
            return tx.shards.segments(shard.id)

    def _said(self, job: Job, shard: Shard) -> Callable[[Row | BadRow], Missing]:
        """Returns a function that makes the result of a row of the input that was not run."""
        reason, error = job.stop_reason or StopReason.FAILED, None
        if job.stop_reason is None:  # the job goes on without this shard
            error = SHARD_GIVEN_UP if job.spec.retry_on_interrupt else INTERRUPTED

        def missing(row: Row | BadRow) -> Missing:
            custom_id = custom_id_of(row, job.spec, shard)
            id = derived_id("batch_req_", f"{job.id}/{shard.shard_no}/{row.index}")
            kept = kept_of(row, job.spec, shard)
            return Missing(
                row.index, NotExecuted(custom_id=custom_id, id=id, reason=reason, error=error, kept=kept)
            )

        return missing

    def _rows(self, job: Job, shard: Shard, *, is_cut: bool) -> Iterator[Row | BadRow]:
        """`is_cut`: they end where they cannot be read."""
        try:
            source = self.sources.open(shard.uri, job.tenant_id)
            yield from rows_of(source.store, source.key, shard, job.spec, line_bytes_max=self.line_bytes_max)
        except (InvalidRequest, StorageError) as error:
            if not is_cut or storage_verdict(error, in_our_store=is_file_id(shard.uri)) != "fail":
                raise InputTrouble(error) from error


def _check_complete(shard: Shard, results: ShardResults) -> None:
    """Rows are counted from 0, each once: so many up to the last are all of them."""
    rows_total = shard.rows_total or 0
    if (results.num_rows, results.last_row) != (rows_total, rows_total - 1):
        raise Mismatch(
            f"shard {shard.shard_no} is done with {rows_total} rows, and {results.num_rows} have a result"
        )


def merged(
    windows: Iterator[Window],
    inputs: Iterator[Row | BadRow],
    shard_no: int,
    said: Callable[[Row | BadRow], Missing],
    listing: Listing,
    *,
    is_cut: bool = False,
) -> Iterator[Chunk]:
    """The windows, and between their rows those of the input that have no result. `is_cut`: the input may end
    before them.
    """
    count, held = 0, _Held(said, listing)
    for window in windows:
        rows, start = window.rows, 0
        present = set(rows)
        while count <= rows[-1]:
            row = next(inputs, None)
            if row is None and is_cut:
                break
            if row is None:
                lost = f"shard {shard_no} has results for rows that its {count} input rows lack"
                raise Mismatch(lost)
            count += 1
            if row.index in present:
                continue
            held.add(row)
            if held.is_full:
                end = bisect_right(rows, row.index)
                yield held.taken(window.slice(start, end))
                start = end
        yield held.taken(window.slice(start, len(rows)))
    for row in inputs:
        held.add(row)
        if held.is_full:
            yield held.taken(None)
    if not held.is_empty:
        yield held.taken(None)


class _Held:
    """Rows without a result, since the last chunk."""

    def __init__(self, said: Callable[[Row | BadRow], Missing], listing: Listing) -> None:
        self._said = said
        self._listing = listing
        self._begin()

    def _begin(self) -> None:
        self._missing: list[Missing] = []
        self._chars = self._unlisted = 0

    @property
    def is_empty(self) -> bool:
        return not self._missing and not self._unlisted

    @property
    def is_full(self) -> bool:
        rows = len(self._missing) + self._unlisted
        return rows >= MISSING_MAX or self._chars >= MISSING_CHARS_MAX

    def add(self, row: Row | BadRow) -> None:
        if self._listing.is_full:
            self._unlisted += 1
            return
        missing = self._said(row)
        self._listing.count(missing)
        self._missing.append(missing)
        self._chars += missing.kept_chars

    def taken(self, window: Window | None) -> Chunk:
        chunk = Chunk(window, self._missing, self._unlisted)
        self._begin()
        return chunk


def _where(window: Window, *, succeeded: bool) -> Window:
    chosen = pc.less(window.table.column("status_code"), 400)
    chosen = chosen if succeeded else pc.invert(chosen)
    if pc.all(chosen).as_py():
        return window  # without a copy
    return Window(window.table.filter(chosen), window.heads)
