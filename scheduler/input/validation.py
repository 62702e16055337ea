"""Reads a whole OpenAI batch file, line by line, and plans it; or says everything that is wrong with it.

Its shards are recorded page by page. Once the first page is recorded the file is known to be valid, and is
only cut. Its first bytes say whether it is compressed, since an uploaded file's key has no ending. A
compressed file cannot be entered in the middle, and so is one shard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nightshift import endpoints
from nightshift.bulk.rows.inputs import InputFormat, UnreadableInput, format_of
from nightshift.bulk.rows.text.compression import GZIP_MAGIC, gunzipped, is_gzip
from nightshift.bulk.rows.text.lines import Line, lines_in_range, split_lines
from nightshift.bulk.rows.validation import Cut, FileLimits, ValidationReport, cut_rows, validate
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.errors import InvalidRequest, ObjectNotFound
from nightshift.jobs import InputError, Job, NewShard
from nightshift.jobs.planning import CutObject, PlanCursor
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore import ObjectReader
from nightshift.objectstore.sources import Source
from nightshift.tenants.rates import CHARS_PER_TOKEN
from scheduler.input.pages import Refused, ShardPage
from scheduler.input.sharding import cut_validated, whole_object
from scheduler.runtime.duty import MayContinue, check, interruptible


def plan_file(
    job: Job,
    source: Source,
    catalogue: Catalogue,
    limits: FileLimits,
    page_shards: int,
    line_bytes_max: int,
    may_continue: MayContinue,
) -> Iterator[ShardPage]:
    """Shards that begin and end exactly at rows, from the job's cursor on. At most
    `page_shards` are in a page. Raises Refused, InvalidRequest, StorageError and Interrupted.
    """
    assert job.spec.input is not None, "a bulk job has an input"
    info = source.store.head(source.key)
    if info is None:
        raise ObjectNotFound(f"There is no input file {job.spec.input}.")
    if format_of(source.key) not in (InputFormat.JSONL, InputFormat.JSONL_GZ):
        raise UnreadableInput("The input of a batch must be one JSONL file, as it is or compressed by gzip.")
    store = WatchedReader(source.store, lambda size_bytes: check(may_continue))
    reading = _FileReading(store, source.key, info.etag, line_bytes_max, may_continue)
    begin = begins_at(job.plan_cursor, job.spec.input, info.etag)
    if begin is None:
        report, is_packed = _validated(job, reading, catalogue, limits)
        assert report.model is not None, "a valid file names its model"
        model, cuts, rows = report.model, report.cuts, report.rows
    else:
        assert job.model is not None, "it was recorded with the first page"
        cuts, rows = cut_rows(reading.lines(begin.offset), begin, limits)
        model, is_packed = job.model, False
    file = PlannedFile(job.spec.input, info.etag, info.size_bytes, rows, model, limits.shard_bytes)
    if is_packed:
        shards = [whole_object(file.uri, InputFormat.JSONL_GZ, rows, file.etag)]
    else:
        first_no = job.plan_cursor.shards
        shards = cut_validated(file.uri, cuts, rows, file.size_bytes, file.etag, first_no)
    return file_pages(file, job.plan_cursor, shards, page_shards)


def _validated(
    job: Job, reading: "_FileReading", catalogue: Catalogue, limits: FileLimits
) -> tuple[ValidationReport, bool]:
    """Returns the report on the whole file, and whether it is compressed.

    Raises Refused, StorageError and Interrupted.
    """
    endpoint = endpoints.get(job.spec.endpoint)
    is_packed = reading.is_packed()
    report = validate(
        reading.packed_lines() if is_packed else reading.lines(),
        endpoint,
        lambda model_id: catalogue.objection(model_id, endpoint.route),
        limits,
    )
    if report.errors:
        raise Refused(*report.errors)
    return report, is_packed


@dataclass(frozen=True)
class _FileReading:
    store: ObjectReader
    key: str
    etag: str
    line_bytes_max: int
    may_continue: MayContinue

    def is_packed(self) -> bool:
        return is_gzip(b"".join(self.store.stream(self.key, 0, len(GZIP_MAGIC), if_match=self.etag)))

    def lines(self, start: int = 0) -> Iterator[Line]:
        """Lines that begin at this byte or behind it."""
        lines = lines_in_range(
            self.store, self.key, start, None, line_bytes_max=self.line_bytes_max, etag=self.etag
        )
        return interruptible(lines, self.may_continue)

    def packed_lines(self) -> Iterator[Line]:
        """Raises Refused, naming the line, for data that cannot be unpacked."""
        return interruptible(self._unpacked(), self.may_continue)

    def _unpacked(self) -> Iterator[Line]:
        unpacked = gunzipped(self.store.stream(self.key, if_match=self.etag))
        number = 0
        try:
            for line in split_lines(unpacked, line_bytes_max=self.line_bytes_max, skip_blank=True):
                number = line.number
                yield line
        except UnreadableInput as error:
            raise Refused(
                InputError(error.default_code, error.message, line=number + 1, param="input_file_id")
            ) from error


@dataclass(frozen=True)
class PlannedFile:
    """A file whose rows are valid, from a job's cursor on."""

    uri: str
    etag: str
    size_bytes: int
    rows: int  # in all
    model: str
    shard_bytes: int


def begins_at(cursor: PlanCursor, uri: str, etag: str) -> Cut | None:
    """The place where the next page begins. None: the file is still to be validated.

    Raises InvalidRequest if it is not the file that the last page ended in.
    """
    if cursor.begun is None:
        return None
    if (cursor.begun.key, cursor.begun.etag) != (uri, etag):
        raise InvalidRequest(f"{uri} was replaced while it was cut into shards.", code="input_changed")
    return Cut(offset=cursor.sampled_bytes, first_row=cursor.sampled_rows)


def file_pages(
    file: PlannedFile, cursor: PlanCursor, shards: Sequence[NewShard], page_shards: int
) -> Iterator[ShardPage]:
    """Pages of up to `page_shards`. `shards` are all from the cursor on, at least one."""
    taken = 0
    while taken < len(shards):
        page = shards[taken : taken + page_shards]
        taken += len(page)
        following = shards[taken] if taken < len(shards) else None
        next = None if following is None else _cursor(file, cursor, following)
        is_only = cursor.page == 0 and next is None
        end = file.size_bytes if following is None else following.start
        yield ShardPage(
            model=file.model,
            shards=page,
            rows_total=file.rows if next is None else None,
            rows_estimated=None if is_only else sum(shard.rows_estimated or 0 for shard in page),
            tokens_estimated=end // CHARS_PER_TOKEN - cursor.sampled_bytes // CHARS_PER_TOKEN,
            next=next,
        )
        if next is not None:
            cursor = next


def _cursor(file: PlannedFile, before: PlanCursor, following: NewShard) -> PlanCursor:
    assert following.first_row is not None, "the rows of a validated file are numbered"
    begun = CutObject(key=file.uri, etag=file.etag, pieces=following.shard_no, piece_bytes=file.shard_bytes)
    return PlanCursor(
        page=before.page + 1,
        begun=begun,
        listed=1,
        objects=1,
        size_bytes=following.start,
        shards=following.shard_no,
        sampled_rows=following.first_row,
        sampled_bytes=following.start,
        commit=before.commit,
    )
