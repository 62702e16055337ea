"""Read a whole OpenAI batch file, line by line, and plan it; or say everything that is wrong with it.

Whether it is compressed, its first bytes say: an uploaded file's key has no ending. A compressed one cannot
be entered in the middle, and so is one shard.
"""

from collections.abc import Iterator

from nightshift import endpoints
from nightshift.errors import ObjectNotFound
from nightshift.jobs import InputError, Job
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore import ObjectReader
from nightshift.objectstore.sources import Source
from nightshift.rows.compression import GZIP_MAGIC, gunzipped, is_gzip
from nightshift.rows.inputs import InputFormat, UnreadableInput, format_of
from nightshift.rows.lines import Line, lines_in_range, split_lines
from nightshift.rows.validation import FileLimits, validate
from nightshift.rows.watched_reader import WatchedReader
from nightshift.tenants.rates import CHARS_PER_TOKEN
from scheduler.input.plan import Page, Refused
from scheduler.input.sharding import cut_validated, whole_object
from scheduler.runtime.duty import MayContinue, check, interruptible


def plan_file(
    job: Job,
    source: Source,
    catalogue: Catalogue,
    limits: FileLimits,
    line_bytes_max: int,
    may_continue: MayContinue,
) -> Page:
    """The only page, of shards that begin and end exactly at rows. Raises Refused, StorageError and
    Interrupted.
    """
    assert job.spec.input is not None, "a bulk job has an input"
    info = source.store.head(source.key)
    if info is None:
        raise ObjectNotFound(f"There is no input file {job.spec.input}.")
    if format_of(source.key) not in (InputFormat.JSONL, InputFormat.JSONL_GZ):
        raise UnreadableInput("The input of a batch must be one JSONL file, as it is or compressed by gzip.")
    endpoint = endpoints.get(job.spec.endpoint)
    store = WatchedReader(source.store, lambda size_bytes: check(may_continue))
    is_packed = is_gzip(b"".join(store.stream(source.key, 0, len(GZIP_MAGIC), if_match=info.etag)))
    read = _packed_lines if is_packed else _lines
    report = validate(
        interruptible(read(store, source.key, info.etag, line_bytes_max), may_continue),
        endpoint,
        lambda model_id: catalogue.objection(model_id, endpoint.route),
        limits,
    )
    if report.errors:
        raise Refused(*report.errors)
    assert report.model is not None, "a valid file names its model"
    if is_packed:
        shards = [whole_object(job.spec.input, InputFormat.JSONL_GZ, report.rows, info.etag)]
    else:
        shards = cut_validated(job.spec.input, report.cuts, report.rows, info.size_bytes, info.etag)
    tokens = info.size_bytes // CHARS_PER_TOKEN
    return Page(model=report.model, shards=shards, rows_total=report.rows, tokens_estimated=tokens)


def _lines(store: ObjectReader, key: str, etag: str, line_bytes_max: int) -> Iterator[Line]:
    return lines_in_range(store, key, 0, None, line_bytes_max=line_bytes_max, etag=etag)


def _packed_lines(store: ObjectReader, key: str, etag: str, line_bytes_max: int) -> Iterator[Line]:
    """Raises Refused, naming the line, for data that cannot be unpacked."""
    unpacked = gunzipped(store.stream(key, if_match=etag))
    number = 0
    try:
        for line in split_lines(unpacked, line_bytes_max=line_bytes_max, skip_blank=True):
            number = line.number
            yield line
    except UnreadableInput as error:
        raise Refused(
            InputError(error.default_code, error.message, line=number + 1, param="input_file_id")
        ) from error
