"""The jobs routes: create, list, describe, cancel, delete."""

import re
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access.authentication import Caller
from api.bodies.dry_runs import DryRun
from api.bodies.jobs import JobCreate, parse_job
from api.bodies.objects import AcceptedJob, DescribedJob, JobPage
from api.dependencies import (
    BodyDep,
    CallerDep,
    DryRunDep,
    EpochSeconds,
    PageDep,
    ServicesDep,
    checked,
    get_job,
    list_json,
    submission,
)
from api.jobs import dry_runs
from api.jobs.deletion import DeletedJob, delete_ended
from api.jobs.idempotency import Created, Repeatable, create_once, repeatable
from api.jobs.online import until_ended
from api.jobs.requests import bulk_request, online_request, run_key
from api.jobs.views import accepted_json, described_json, head_json, listed_json
from api.plain_routes import plain_route
from api.responses.times import from_seconds
from api.services.group_commit import Accepted
from api.services.services import Services
from nightshift.errors import Conflict, InvalidRequest
from nightshift.jobs import Job, JobKind, JobState, JsonObject, NewJob
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

WAIT_MAX_S: Final = 60  # of `Prefer: wait=…`

_PREFER_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*([0-9]{1,6})")


async def _filters(
    status: Annotated[list[JobState] | None, Query(description="Repeat it for any of several.")] = None,
    priority: PriorityClass | None = None,
    kind: JobKind | None = None,
    model: str | None = None,
    name: str | None = None,
    created_after: EpochSeconds | None = None,
    created_before: EpochSeconds | None = None,
) -> JobFilters:
    """`created_after` is inclusive and `created_before` exclusive, for periods side by side. Raises
    InvalidRequest.
    """
    if created_after is not None and created_before is not None and created_after >= created_before:
        raise InvalidRequest(
            f"Invalid 'created_before': {created_before} is not after 'created_after', {created_after}.",
            param="created_before",
        )
    return JobFilters(
        states=tuple(status or ()),
        priority=priority,
        kind=kind,
        model=model,
        name=name,
        created_from=None if created_after is None else from_seconds(created_after),
        created_before=None if created_before is None else from_seconds(created_before),
    )


FiltersDep = Annotated[JobFilters, Depends(_filters)]


async def create_job(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    body: BodyDep,
    dry_run: DryRunDep = False,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
    prefer: Annotated[str, Header()] = "",
) -> Response:
    if dry_run:
        found = await _dry_run(request, services, caller, body, idempotency_key)
        return JSONResponse(found.model_dump(mode="json"))
    async with services.body_turns.beginning.hold(caller.tenant_id):
        asked, new = await checked(request, services, caller, lambda: _checked(services, caller, body))
        created = await run_in_threadpool(
            _create, services, caller, asked, new, idempotency_key, x_stainless_retry_count
        )
    wait_s = _wait_s(prefer)
    if wait_s == 0:
        return JSONResponse(created.body, created.status_code, created.headers)
    await until_ended(services, created.job, created.shard_id, wait_s, request.is_disconnected)
    job, shown = await run_in_threadpool(_show, services, caller, created.job.id)
    return JSONResponse(shown, 200 if job.state.is_terminal else 202, created.headers)


async def _submit(request: Request) -> Response:
    """`create_job` for a request without a query."""
    services, caller, body = await submission(request)
    headers = request.headers
    return await create_job(
        request,
        services,
        caller,
        body,
        idempotency_key=headers.get("idempotency-key"),
        x_stainless_retry_count=headers.get("x-stainless-retry-count"),
        prefer=headers.get("prefer", ""),
    )


router.add_api_route(
    "",
    create_job,
    methods=["POST"],
    summary="Submit a job: one request, or an input of many",
    status_code=202,
    response_model=DescribedJob | AcceptedJob | DryRun,
    route_class_override=plain_route(_submit),
)


@router.get(
    "",
    summary="List jobs, newest first",
    response_model=JobPage,
)
def list_jobs(
    services: ServicesDep,
    caller: CallerDep,
    page: PageDep,
    filters: FiltersDep,
) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        found = tx.jobs.list(
            caller.tenant_id,
            limit=page.limit + 1,
            after=None if page.after is None else get_job(tx, caller, page.after, param="after"),
            filters=filters,
        )
        rendered = listed_json(tx, found, now, services.settings.api.base_url)
    return JSONResponse(list_json(rendered, page.limit))


@router.get(
    "/{job_id}",
    summary="Describe a job",
    response_model=DescribedJob,
)
def describe_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    _, shown = _show(services, caller, job_id)
    return JSONResponse(shown)


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job; what is done stays",
    response_model=DescribedJob,
)
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> JsonObject:
        job, now = get_job(tx, caller, job_id), tx.now()
        if not transitions.cancel(tx, job, now):
            raise Conflict(f"Cannot cancel a job with status '{job.state}'.")
        return described_json(tx, tx.jobs.fetch(job.id), now, services.settings.api)

    shown = services.store.run(stop)
    services.ring_sender.hint()
    return JSONResponse(shown)


@router.delete(
    "/{job_id}",
    summary="Delete a job that has ended",
    response_model=DeletedJob,
)
def delete_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: delete_ended(tx, lambda: get_job(tx, caller, job_id)))
    return JSONResponse(DeletedJob(id=job_id).model_dump())


async def _dry_run(
    request: Request, services: Services, caller: Caller, body: JsonObject, key: str | None
) -> DryRun:
    async with services.body_turns.beginning.hold(caller.tenant_id):
        asked, new = await checked(request, services, caller, lambda: _checked(services, caller, body))
    repeat = repeatable(caller.tenant_id, new.fingerprint, run_key(asked) or key, None)
    return await dry_runs.dry_run(services, caller, new, asked.body, repeat)


def _checked(services: Services, caller: Caller, body: JsonObject) -> tuple[JobCreate, NewJob]:
    """Raises InvalidRequest."""
    asked = parse_job(body)
    window_max_s = services.settings.submission.completion_window_max_s
    convert = online_request if asked.body is not None else bulk_request
    request = convert(caller.tenant_id, asked, body, window_max_s)
    return asked, services.submitter.check(request, caller.priority_ceiling)


def _create(
    services: Services,
    caller: Caller,
    asked: JobCreate,
    new: NewJob,
    key: str | None,
    retry_count: str | None,
) -> Created:
    request = repeatable(caller.tenant_id, new.fingerprint, run_key(asked) or key, retry_count)
    if asked.body is not None and not request.may_be_repeat:
        accepted = services.group_commit.submit(new, asked.body)
        return _created(accepted, services.settings.api.base_url)
    created = _create_once(services, asked, new, request)
    services.ring_sender.send(created.rings)
    return created


def _created(accepted: Accepted, base_url: str) -> Created:
    job, shard_id = accepted.submitted.job, accepted.submitted.shard_id
    return Created(job, shard_id, 202, head_json(job, accepted.position, base_url))


def _create_once(services: Services, asked: JobCreate, new: NewJob, request: Repeatable) -> Created:
    def submit(tx: Transaction, now: datetime) -> Submitted:
        if asked.body is not None:
            return services.submitter.submit_online(tx, new, asked.body, now)
        return services.submitter.submit_bulk(tx, new, now)

    def render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
        return accepted_json(tx, job, services.settings.api.base_url)

    return create_once(services.store, request, submit, render, 202)


def _show(services: Services, caller: Caller, job_id: str) -> tuple[Job, JsonObject]:
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        return job, described_json(tx, job, tx.now(), services.settings.api)


def _wait_s(prefer: str) -> int:
    """The seconds in `Prefer: wait=30`, at most `WAIT_MAX_S`; 0 without it."""
    match = _PREFER_WAIT.search(prefer)
    return min(int(match[1]), WAIT_MAX_S) if match else 0
