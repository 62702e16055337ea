"""A job's rows with a result, in the order of their commits, also while it runs.

    row_{segment}_{row}      the row with this number in the segment with this number

Listed segments never change, so a reader that continues after its last row misses none and gets none twice.
Rows that never ran are only in the job's output.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response, StreamingResponse

from api.bodies.objects import RowPage
from api.dependencies import LISTING_BYTES_MAX, CallerDep, ListingDep, ServicesDep, get_job
from api.responses.streams import whole
from api.services.services import Services
from nightshift.bulk.results.row_results import NotExecuted
from nightshift.bulk.results.segments import read_segment
from nightshift.errors import NotFound
from nightshift.jobs import Job, JobKind, StopReason
from nightshift.store.shards.shards import ListedSegment

PIECE_BYTES: Final = 256 * 1024  # of lines sent at a time
SEGMENTS_READ: Final = 32  # at a time; a segment is read when its rows are needed

_ID: Final = re.compile(rb'\{"id":("[^"]+")')
_PLACE: Final = re.compile(r"row_([0-9]{1,18})_([0-9]{1,9})")


@dataclass(frozen=True)
class RowPlace:
    """A row's position: its segment's number in commit order, and its own in the segment, from 0."""

    segment: int
    row: int

    @classmethod
    def parse(cls, text: str) -> "RowPlace":
        """Raises NotFound for text that is no row id."""
        match = _PLACE.fullmatch(text)
        if match is None:
            raise _no_such_row(text)
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"row_{self.segment}_{self.row}"


def rows_of(
    services: Services, job: Job, after: str | None, limit: int | None, *, only_failed: bool = False
) -> Iterator[bytes]:
    """The lines of at most `limit` rows after this row; None: all there are. Blocks on the object store.

    Raises NotFound, also once the results are deleted; that of an unknown row when first advanced.
    """
    if job.results_deleted_at is not None:
        raise NotFound("The results of this job have had their time and are deleted.", code="results_deleted")
    place = None if after is None else RowPlace.parse(after)
    rows = (
        _online_row(services, job, place)
        if job.kind is JobKind.ONLINE
        else _bulk_rows(services, job, place, only_failed=only_failed)
    )
    return islice(rows, limit)


def in_pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines, some at a time. Raises what taking one of them raises."""
    held: list[bytes] = []
    held_bytes = 0
    for line in lines:
        held.append(line)
        held_bytes += len(line)
        if held_bytes >= PIECE_BYTES:
            yield b"".join(held)
            held, held_bytes = [], 0
    if held:
        yield b"".join(held)


def listing_of(lines: Sequence[bytes], limit: int) -> bytes:
    """Rows in the list envelope, cut to `LISTING_BYTES_MAX` but never to none.

    `lines` has one more than `limit` if there are more rows. They go into the envelope as they are: a row may
    be as large as an answer.
    """
    kept: list[bytes] = []
    size_bytes = 0
    for line in lines[:limit]:
        size_bytes += len(line)
        if kept and size_bytes > LISTING_BYTES_MAX:
            break
        kept.append(line.rstrip(b"\n"))
    ids = [_id_of(kept[0]), _id_of(kept[-1])] if kept else [b"null", b"null"]
    more = b"true" if len(lines) > len(kept) else b"false"
    parts = b'{"object":"list","data":[', b",".join(kept), b'],"first_id":', ids[0], b',"last_id":', ids[1]
    return b"".join([*parts, b',"has_more":', more, b"}"])


def _id_of(line: bytes) -> bytes:
    """A row's id as JSON: its line begins with it."""
    match = _ID.match(line)
    assert match is not None, "every row has an id first"
    return match[1]


def _bulk_rows(services: Services, job: Job, after: RowPlace | None, *, only_failed: bool) -> Iterator[bytes]:
    for listed in _segments(services, job, after):
        if only_failed and not listed.segment.failed:
            continue
        first = after.row + 1 if after is not None and after.segment == listed.id else 0
        results = read_segment(services.objects, listed.segment)
        for row, result in enumerate(results[first:], start=first):
            if not (only_failed and result.succeeded):
                yield result.native_line(str(RowPlace(listed.id, row)))


def _segments(services: Services, job: Job, after: RowPlace | None) -> Iterator[ListedSegment]:
    """The segments from that of the row `after`. Raises NotFound if it is not the job's."""
    segments = _listed(services, job, 0 if after is None else after.segment - 1)
    if after is not None and (not segments or segments[0].id != after.segment):
        raise _no_such_row(after)
    while segments:
        yield from segments
        segments = _listed(services, job, segments[-1].id)


def _listed(services: Services, job: Job, after_id: int) -> Sequence[ListedSegment]:
    with services.store.snapshot() as tx:
        return tx.shards.segments_of_job(job.tenant_id, job.id, after_id=after_id, limit=SEGMENTS_READ)


def _online_row(services: Services, job: Job, after: RowPlace | None) -> Iterator[bytes]:
    """An online job's row, once the job has ended."""
    place = RowPlace(0, 0)
    if after is not None and after != place:
        raise _no_such_row(after)
    if after is not None:
        return
    with services.store.snapshot() as tx:
        answer = tx.shards.online_result(job.tenant_id, job.id)
    if answer is not None:
        outcome = "succeeded" if answer.succeeded else "errored"
        response = f'{{"status_code":{answer.status_code},"request_id":null,"body":{answer.text}}}'
        head, rest = f'"id":"{place}","custom_id":null', f'"error":null,"outcome":"{outcome}"'
        yield f'{{{head},"response":{response},{rest}}}\n'.encode()
    elif job.state.is_terminal:
        reason = job.stop_reason or StopReason.FAILED
        error = job.errors[0] if job.errors else None
        yield NotExecuted(custom_id=None, id=str(place), reason=reason, error=error).native_line()


def _no_such_row(place: RowPlace | str) -> NotFound:
    return NotFound(f"No such row: {place}", param="after")


router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

NDJSON: Final = "application/x-ndjson"
INCOMPLETE = {"x-nightshift-incomplete": "true"}  # more rows may come


@router.get(
    "/{job_id}/results",
    summary="Read the rows that are done, in the order they were: a page, or all as lines of JSON",
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}},
    response_model=RowPage,
)
async def list_results(
    job_id: str,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    listing: ListingDep,
    accept: Annotated[str, Header()] = "",
    outcome: Literal["errored"] | None = None,
) -> Response:
    """`outcome`: with `errored` those rows of a bulk job alone."""
    only_failed = outcome is not None
    is_streamed = NDJSON in accept.lower()
    limit = listing.limit if "limit" in request.query_params else None

    def find() -> Job:
        with services.store.snapshot() as tx:
            return get_job(tx, caller, job_id)  # before the rows: a job seen as ended lists all of them

    storage = services.storage_threads.for_tenant(caller.tenant_id)
    job = await storage.run(find)
    headers = {} if job.state.is_terminal else INCOMPLETE
    if is_streamed:
        rows = rows_of(services, job, listing.after, limit, only_failed=only_failed)
        pieces = await storage.begun(in_pieces(rows))
        return StreamingResponse(pieces, 200, headers, media_type=NDJSON)
    content = await storage.run(
        lambda: listing_of(
            [*rows_of(services, job, listing.after, listing.limit + 1, only_failed=only_failed)],
            listing.limit,
        )
    )
    return whole(content, headers=headers)
