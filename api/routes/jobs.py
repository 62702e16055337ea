"""The jobs routes: create, list, describe, cancel."""

import re
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.authentication import Caller
from api.dependencies import BodyDep, CallerDep, PageDep, ServicesDep, get_job, list_json
from api.jobs.bodies import parse_job
from api.jobs.idempotency import Created, create_once, repeatable
from api.jobs.online import until_ended
from api.jobs.requests import bulk_request, online_request, run_key
from api.jobs.views import accepted_json, job_json, listed_json
from api.services import Services
from nightshift.errors import Conflict
from nightshift.jobs import Job, JobKind, JobState, JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

WAIT_MAX_S: Final = 60  # of `Prefer: wait=…`

_PREFER_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*([0-9]{1,6})")


@router.post("", summary="Submit a job: one request, or an input of many", status_code=202)
async def create_job(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    body: BodyDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
    prefer: Annotated[str, Header()] = "",
) -> Response:
    created = await run_in_threadpool(
        _create, services, caller, body, idempotency_key, x_stainless_retry_count
    )
    wait_s = _wait_s(prefer)
    if wait_s == 0:
        return JSONResponse(created.body, created.status_code)
    await until_ended(services, created.job, created.shard_id, wait_s, request.is_disconnected)
    job, shown = await run_in_threadpool(_show, services, caller, created.job.id)
    return JSONResponse(shown, 200 if job.state.is_terminal else 202)


@router.get("", summary="List jobs, newest first")
def list_jobs(
    services: ServicesDep,
    caller: CallerDep,
    page: PageDep,
    status: JobState | None = None,
    priority: PriorityClass | None = None,
    kind: JobKind | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        found = tx.jobs.list(
            caller.tenant_id,
            limit=page.limit + 1,
            after=None if page.after is None else get_job(tx, caller, page.after, param="after"),
            kind=kind,
            state=status,
            priority=priority,
        )
        rendered = [listed_json(tx, job, now, services.settings.api.base_url) for job in found]
    return JSONResponse(list_json(rendered, page.limit))


@router.get("/{job_id}", summary="Describe a job")
def describe_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    _, shown = _show(services, caller, job_id)
    return JSONResponse(shown)


@router.post("/{job_id}/cancel", summary="Cancel a job; what is done stays")
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> JsonObject:
        job, now = get_job(tx, caller, job_id), tx.now()
        if not transitions.cancel(tx, job, now):
            raise Conflict(f"Cannot cancel a job with status '{job.state}'.")
        return job_json(tx, tx.jobs.fetch(job.id), now, services.settings.api.base_url)

    shown = services.store.run(stop)
    services.ring_sender.hint()
    return JSONResponse(shown)


def _create(
    services: Services, caller: Caller, body: JsonObject, key: str | None, retry_count: str | None
) -> Created:
    asked = parse_job(body)
    window_max_s = services.settings.submission.completion_window_max_s
    convert = online_request if asked.body is not None else bulk_request
    new = services.submitter.check(
        convert(caller.tenant_id, asked, body, window_max_s), caller.priority_ceiling
    )

    def submit(tx: Transaction, now: datetime) -> Submitted:
        if asked.body is not None:
            return services.submitter.submit_online(tx, new, asked.body, now)
        return services.submitter.submit_bulk(tx, new, now)

    def render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
        return accepted_json(tx, job, services.settings.api.base_url)

    request = repeatable(caller.tenant_id, new.fingerprint, run_key(asked) or key, retry_count)
    created = create_once(services.store, request, submit, render, 202)
    services.ring_sender.send(created.rings)
    return created


def _show(services: Services, caller: Caller, job_id: str) -> tuple[Job, JsonObject]:
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        return job, job_json(tx, job, tx.now(), services.settings.api.base_url)


def _wait_s(prefer: str) -> int:
    """The seconds in `Prefer: wait=30`, at most `WAIT_MAX_S`; 0 without it."""
    match = _PREFER_WAIT.search(prefer)
    return min(int(match[1]), WAIT_MAX_S) if match else 0
