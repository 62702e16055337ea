"""The content of a batch's partial output, under a file's route."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.openai.ranges import Unsatisfiable, parse_range, ranged, unsatisfiable
from api.responses.times import seconds
from api.services.services import Services
from api.services.threads import TenantStorageThreads
from nightshift.bulk.results.row_results import output_lines
from nightshift.bulk.results.segments import read_segment
from nightshift.errors import InvalidRequest, NotFound
from nightshift.jobs import Face, Job, JsonObject
from nightshift.jobs.files import FilePurpose, job_id_of_partial_output, partial_output_file_id
from nightshift.jobs.ids import batch_id
from nightshift.store.shards.shards import ListedSegment

SEGMENTS_READ: Final = 256  # at a time


@dataclass(frozen=True)
class Extent:
    """The size of the output so far."""

    size_bytes: int = 0
    lines: int = 0


@dataclass(frozen=True)
class _Placed:
    """A segment, and what comes before its lines."""

    listed: ListedSegment
    before: Extent
    after: Extent


@dataclass(frozen=True)
class PartialOutput:
    """A tenant's batch. Every method blocks on the database, and may on the object store."""

    services: Services
    job: Job

    @property
    def storage(self) -> TenantStorageThreads:
        return self.services.storage_threads.for_tenant(self.job.tenant_id)

    def extent(self) -> Extent:
        """Raises NotFound if the batch's results had their time."""
        if self.job.results_deleted_at is not None:
            output = self.job.output_file_id
            hint = f" The whole output is {output}." if output else ""
            raise NotFound(
                f"The partial output of this batch is kept no longer.{hint}",
                param="id",
                code="results_deleted",
            )
        extent = Extent()
        for placed in self._placed():
            extent = placed.after
        return extent

    def offset_after(self, line: int) -> int:
        """The byte at which what follows this line, counted from 1, begins; the end if there are no more."""
        end = 0
        for placed in self._placed():
            end = placed.after.size_bytes
            if placed.after.lines > line:
                skipped = self._lines(placed)[: line - placed.before.lines]
                return placed.before.size_bytes + sum(map(len, skipped))
        return end

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end). Raises StorageError for results that cannot be read."""
        for placed in self._placed():
            if placed.before.size_bytes >= end:
                return
            if placed.after.size_bytes > start:
                data = b"".join(self._lines(placed))
                at = placed.before.size_bytes
                yield data[max(0, start - at) : end - at]

    def _placed(self) -> Iterator[_Placed]:
        before, last_id = Extent(), 0
        while segments := self._listed(last_id):
            for listed in segments:
                size_bytes = listed.segment.output_bytes
                assert size_bytes is not None, "a worker says how long the lines of a segment are"
                after = Extent(before.size_bytes + size_bytes, before.lines + listed.segment.succeeded)
                yield _Placed(listed, before, after)
                before = after
            last_id = segments[-1].id

    def _listed(self, after_id: int) -> Sequence[ListedSegment]:
        with self.services.store.snapshot() as tx:
            return tx.shards.segments_of_job(
                self.job.tenant_id, self.job.id, after_id=after_id, limit=SEGMENTS_READ
            )

    def _lines(self, placed: _Placed) -> list[bytes]:
        return list(output_lines(read_segment(self.services.objects, placed.listed.segment)))


INCOMPLETE: Final = {"x-nightshift-incomplete": "true"}  # more lines may come


async def find(services: Services, caller: Caller, file_id: str) -> PartialOutput | None:
    """The partial output with this file id. None: it is no id of a partial output of the caller's tenant."""
    job_id = job_id_of_partial_output(file_id)
    if job_id is None:
        return None
    job = await run_in_threadpool(_find, services, caller, job_id)
    return None if job is None else PartialOutput(services, job)


async def described(output: PartialOutput) -> JsonObject:
    """The partial output as a File."""
    job = output.job
    extent = await output.storage.run(output.extent)
    return {
        "id": partial_output_file_id(job.id),
        "object": "file",
        "bytes": extent.size_bytes,
        "created_at": seconds(job.created_at),
        "expires_at": None,
        "filename": _filename(job),
        "purpose": FilePurpose.BATCH_OUTPUT,
        "status": "processed" if job.state.is_terminal else "uploaded",
        "status_details": None,
    }


async def content(output: PartialOutput, range: str | None, after_line: int | None) -> Response:
    """The output so far, from a byte (`Range`) or after a line. Raises InvalidRequest, NotFound."""
    if range is not None and after_line is not None:
        raise InvalidRequest("Give either 'after_line' or the header Range.", param="after_line")
    storage = output.storage
    size_bytes = (await storage.run(output.extent)).size_bytes
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": f'attachment; filename="{_filename(output.job)}"',
        **({} if output.job.state.is_terminal else INCOMPLETE),
    }
    try:
        part = parse_range(range, size_bytes)
    except Unsatisfiable:
        return unsatisfiable(size_bytes, headers)
    start, end = (0, size_bytes) if part is None else (part.start, part.end)
    if after_line is not None:
        start = min(end, await storage.run(lambda: output.offset_after(after_line)))
    return ranged(storage.iterate(output.pieces(start, end)), end - start, part, headers)


def _find(services: Services, caller: Caller, job_id: str) -> Job | None:
    with services.store.snapshot() as tx:
        job = tx.jobs.get(caller.tenant_id, job_id)  # before the lines: one seen as ended has all of them
    return job if job is not None and job.face is Face.OPENAI and job.spec.input is not None else None


def _filename(job: Job) -> str:
    return f"{batch_id(job.id)}_partial.jsonl"
