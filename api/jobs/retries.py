"""POST /v1/jobs/{id}/retry: the rows that did not succeed, as a new job."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access.authentication import Caller
from api.bodies.jobs import parse_job_retry
from api.bodies.objects import AcceptedJob
from api.dependencies import CallerDep, OptionalBodyDep, ServicesDep, get_job
from api.jobs.idempotency import Created, create_once, repeatable
from api.jobs.requests import retry_request
from api.jobs.views import accepted_json
from api.services.services import Services
from nightshift.jobs import Job, JsonObject
from nightshift.lifecycle import retry
from nightshift.lifecycle.transitions import Submitted
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])


@router.post(
    "/{job_id}/retry",
    summary="Run the rows that did not succeed again, as a new job",
    status_code=202,
    response_model=AcceptedJob,
)
async def retry_job(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    body: OptionalBodyDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
) -> Response:
    created = await run_in_threadpool(
        _retry, services, caller, job_id, body, idempotency_key, x_stainless_retry_count
    )
    return JSONResponse(created.body, created.status_code, created.headers)


def _retry(
    services: Services,
    caller: Caller,
    job_id: str,
    body: JsonObject,
    key: str | None,
    retry_count: str | None,
) -> Created:
    asked = parse_job_retry(body)
    with services.store.snapshot() as tx:
        old = get_job(tx, caller, job_id)
        retry.check(old)
        request = retry_request(old, asked, body, services.settings.submission.completion_window_max_s)
        new = retry.as_retry(
            tx,
            services.submitter.check(request, caller.priority_ceiling),
            old,
            has_own_output=asked.output is not None,
            has_own_webhook=asked.webhook is not None,
        )

    def submit(tx: Transaction, now: datetime) -> Submitted:
        return retry.submit(tx, new, services.submitter, now)

    def render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
        return accepted_json(tx, job, services.settings.api.base_url) | {"retry_of": job.retry_of}

    repeat = repeatable(caller.tenant_id, new.fingerprint, key, retry_count)
    return create_once(services.store, repeat, submit, render, 202)
