"""GET /v1/jobs/{id}/results: rows with a result, also while the job runs."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response, StreamingResponse

from api.bodies.objects import RowPage
from api.dependencies import CallerDep, PageDep, ServicesDep, get_job
from api.jobs.results import in_pieces, page_of, rows_of
from api.responses.large import whole
from api.services.services import TenantStorageThreads
from nightshift.jobs import Job

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
    page: PageDep,
    accept: Annotated[str, Header()] = "",
) -> Response:
    is_streamed = NDJSON in accept.lower()
    limit = page.limit if "limit" in request.query_params else None

    def find() -> Job:
        with services.store.snapshot() as tx:
            return get_job(tx, caller, job_id)  # before the rows: a job seen as ended lists all of them

    storage = services.storage_threads.of(caller.tenant_id)
    job = await storage.run(find)
    headers = {} if job.state.is_terminal else INCOMPLETE
    if is_streamed:
        rows = rows_of(services, job, page.after, limit)
        pieces = await _begun(storage, in_pieces(rows))
        return StreamingResponse(pieces, 200, headers, media_type=NDJSON)
    content = await storage.run(
        lambda: page_of([*rows_of(services, job, page.after, page.limit + 1)], page.limit)
    )
    return whole(content, headers=headers)


async def _begun(storage: TenantStorageThreads, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The first piece is read before the answer begins: an unknown row is a 404. One is held at a time."""
    first = await storage.run(lambda: next(pieces, b""))

    async def all_pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in storage.iterate(pieces):
            yield piece

    return all_pieces()
