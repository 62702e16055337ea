"""Read a whole OpenAI batch file, line by line, and plan it; or say everything that is wrong with it.

Its shards are recorded page by page. After the first one the file is known to be valid, and only cut.
Whether it is compressed, its first bytes say: an uploaded file's key has no ending. A compressed one cannot
be entered in the middle, and so is one shard.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nightshift import endpoints
from nightshift.bulk.rows.inputs import InputFormat, UnreadableInput, format_of
from nightshift.bulk.rows.text.compression import GZIP_MAGIC, gunzipped, is_gzip
from nightshift.bulk.rows.text.lines import Line, lines_in_range, split_lines
from nightshift.bulk.rows.validation import FileLimits, ValidationReport, cut_rows, validate
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.errors import ObjectNotFound
from nightshift.jobs import InputError, Job
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore import ObjectReader
from nightshift.objectstore.sources import Source
from scheduler.input.file_pages import PlannedFile, begins_at, file_pages
from scheduler.input.pages import Refused, ShardPage
from scheduler.input.sharding import cut_validated, whole_object
from scheduler.runtime.duty import MayContinue, check, interruptible


def plan_file(
    job: Job,
    source: Source,
    catalogue: Catalogue,
    limits: FileLimits,
    page_shards: Callable[[], int],
    line_bytes_max: int,
    may_continue: MayContinue,
) -> Iterator[ShardPage]:
    """Shards that begin and end exactly at rows, from the job's cursor on. `page_shards`: of a page, at most,
    as of now. Raises Refused, InvalidRequest, StorageError and Interrupted.
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
    """Of the whole file, and whether it is compressed. Raises Refused, StorageError and Interrupted."""
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
        """Those that begin at this byte or behind it."""
        found = lines_in_range(
            self.store, self.key, start, None, line_bytes_max=self.line_bytes_max, etag=self.etag
        )
        return interruptible(found, self.may_continue)

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
