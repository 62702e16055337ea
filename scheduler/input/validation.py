"""Read a whole OpenAI batch file, line by line, and plan it; or say everything that is wrong with it."""

from nightshift import endpoints
from nightshift.errors import ObjectNotFound
from nightshift.jobs import Job
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore.sources import Source
from nightshift.rows.inputs import InputFormat, UnreadableInput, format_of
from nightshift.rows.lines import lines_in_range
from nightshift.rows.validation import FileLimits, validate
from scheduler.input.plan import Plan, Refused
from scheduler.input.sharding import cut_validated
from scheduler.input.watched_reader import WatchedReader
from scheduler.runtime.duty import MayContinue, check, interruptible


def plan_file(
    job: Job,
    source: Source,
    catalogue: Catalogue,
    limits: FileLimits,
    line_bytes_max: int,
    may_continue: MayContinue,
) -> Plan:
    """Shards that begin and end exactly at rows. Raises Refused, StorageError and Interrupted."""
    assert job.spec.input is not None, "a bulk job has an input"
    info = source.store.head(source.key)
    if info is None:
        raise ObjectNotFound(f"There is no input file {job.spec.input}.")
    if format_of(source.key) is not InputFormat.JSONL:
        raise UnreadableInput("The input of a batch must be one JSONL file, not compressed.")
    endpoint = endpoints.get(job.spec.endpoint)
    store = WatchedReader(source.store, lambda size_bytes: check(may_continue))
    lines = lines_in_range(store, source.key, 0, None, line_bytes_max=line_bytes_max, etag=info.etag)
    report = validate(
        interruptible(lines, may_continue),
        endpoint,
        lambda model_id: catalogue.objection(model_id, endpoint.route),
        limits,
    )
    if report.errors:
        raise Refused(*report.errors)
    assert report.model is not None, "a valid file names its model"
    shards = cut_validated(job.spec.input, report.cuts, report.rows, info.size_bytes, info.etag)
    return Plan(model=report.model, shards=shards, rows_total=report.rows)
