"""The content of a batch's partial output, under a file's route."""

from typing import Final

from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.access.authentication import Caller
from api.jobs.partial_output import PartialOutput
from api.openai.ranges import Unsatisfiable, parse_range, unsatisfiable
from api.responses.times import seconds
from api.services.services import Services
from nightshift.errors import InvalidRequest
from nightshift.jobs import Face, Job, JsonObject
from nightshift.jobs.files import FilePurpose, job_id_of_partial_output, partial_output_file_id
from nightshift.jobs.ids import batch_id

CONTENT_TYPE: Final = "application/octet-stream"
INCOMPLETE: Final = {"x-nightshift-incomplete": "true"}  # more lines may come


async def find(services: Services, caller: Caller, file_id: str) -> PartialOutput | None:
    """None: this is no id of a partial output of the caller's tenant."""
    job_id = job_id_of_partial_output(file_id)
    if job_id is None:
        return None
    job = await run_in_threadpool(_find, services, caller, job_id)
    return None if job is None else PartialOutput(services, job)


async def described(output: PartialOutput) -> JsonObject:
    """As a File."""
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
    """What there is now, from a byte (`Range`) or after a line. Raises InvalidRequest, NotFound."""
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
    headers["content-length"] = str(end - start)
    if part is not None:
        headers["content-range"] = part.content_range
    pieces = storage.iterate(output.pieces(start, end))
    return StreamingResponse(pieces, 200 if part is None else 206, headers, media_type=CONTENT_TYPE)


def _find(services: Services, caller: Caller, job_id: str) -> Job | None:
    with services.store.snapshot() as tx:
        job = tx.jobs.get(caller.tenant_id, job_id)  # before the lines: one seen as ended has all of them
    return job if job is not None and job.face is Face.OPENAI and job.spec.input is not None else None


def _filename(job: Job) -> str:
    return f"{batch_id(job.id)}_partial.jsonl"
