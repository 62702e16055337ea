"""GET /v1/jobs/{id}/results: rows with a result, also while the job runs."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.dependencies import CallerDep, PageDep, ServicesDep, get_job, list_json
from api.jobs.results import rows_of
from nightshift.jobs import Job, JsonObject

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

INCOMPLETE = {"x-nightshift-incomplete": "true"}  # more rows may come


@router.get("/{job_id}/results", summary="Read the rows that are done, in the order they were")
async def list_results(job_id: str, services: ServicesDep, caller: CallerDep, page: PageDep) -> Response:
    def read() -> tuple[Job, list[JsonObject]]:
        with services.store.snapshot() as tx:
            job = get_job(tx, caller, job_id)  # read before the rows: a job seen as ended lists all of them
        return job, rows_of(services, job, page.after, page.limit + 1)

    job, rows = await services.storage_threads.run(read)
    headers = {} if job.state.is_terminal else INCOMPLETE
    return JSONResponse(list_json(rows, page.limit), headers=headers)
