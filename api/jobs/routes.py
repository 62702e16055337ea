"""The jobs routes: create, list, describe, cancel, delete."""

import re
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.jobs import JobCreate
from api.bodies.objects import AcceptedJob, DescribedJob, JobPage
from api.dependencies import (
    BodyDep,
    CallerDep,
    CreatedBetweenDep,
    DryRunDep,
    ListingDep,
    ServicesDep,
    Submission,
    get_job,
    plain_route,
)
from api.jobs import dry_runs
from api.jobs.controls import DeletedJob, delete_ended
from api.jobs.dry_runs import DryRun
from api.jobs.idempotency import Created, Repeatable, create_once, repeatable
from api.jobs.online import until_ended
from api.jobs.requests import bulk_job, online_job
from api.jobs.views import accepted_json, described_json, head_json, listed_json
from api.services.services import Services
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import Conflict
from nightshift.jobs import Job, JobKind, JobState, JsonObject, NewJob
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.schedules.changes import check_name
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
    created: CreatedBetweenDep = (None, None),
) -> JobFilters:
    created_from, created_before = created
    return JobFilters(
        states=tuple(status or ()),
        priority=priority,
        kind=kind,
        model=model,
        name=name,
        created_from=created_from,
        created_before=created_before,
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
    # Only requests with a query come here. The headers are declared for the document, and read below.
    submission = Submission(request, services, caller, body)
    return await (_dry_run(submission) if dry_run else _create(submission))


async def _read_and_create(request: Request) -> Response:
    return await _create(await Submission.read(request))


router.add_api_route(
    "",
    create_job,
    methods=["POST"],
    summary="Submit a job: one request, or an input of many",
    status_code=202,
    response_model=DescribedJob | AcceptedJob | DryRun,
    route_class_override=plain_route(_read_and_create),
)


@router.get("", summary="List jobs, newest first", response_model=JobPage)
def list_jobs(services: ServicesDep, caller: CallerDep, listing: ListingDep, filters: FiltersDep) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        jobs = tx.jobs.list(
            caller.tenant_id,
            limit=listing.limit + 1,
            after=listing.start(lambda id: get_job(tx, caller, id, param="after")),
            filters=filters,
        )
        rendered = listed_json(tx, jobs, now, services.settings.api.base_url)
    return JSONResponse(listing.json(rendered))


@router.get("/{job_id}", summary="Describe a job", response_model=DescribedJob)
def describe_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    _, shown = _show(services, caller, job_id)
    return JSONResponse(shown)


@router.post("/{job_id}/cancel", summary="Cancel a job; what is done stays", response_model=DescribedJob)
def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> JsonObject:
        job, now = get_job(tx, caller, job_id), tx.now()
        if not transitions.cancel(tx, job, now):
            raise Conflict(f"Cannot cancel a job with status '{job.state}'.")
        return described_json(tx, tx.jobs.fetch(job.id), now, services.settings.api)

    shown = services.store.run(stop)
    services.ring_sender.hint()
    return JSONResponse(shown)


@router.delete("/{job_id}", summary="Delete a job that has ended", response_model=DeletedJob)
def delete_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: delete_ended(tx, lambda: get_job(tx, caller, job_id)))
    return JSONResponse(DeletedJob(id=job_id).model_dump())


async def _create(submission: Submission) -> Response:
    request, services, caller = submission.request, submission.services, submission.caller
    async with services.body_turns.beginning.hold(caller.tenant_id):
        fields, new = await submission.checked(lambda: _checked(submission))
        created = await run_in_threadpool(_create_once, submission, fields, new)
    wait_s = _wait_s(request.headers.get("prefer"))
    if wait_s == 0:
        return JSONResponse(created.body, created.status_code, created.headers)
    await until_ended(services, created.job, created.shard_id, wait_s, request.is_disconnected)
    job, shown = await run_in_threadpool(_show, services, caller, created.job.id)
    return JSONResponse(shown, 200 if job.state.is_terminal else 202, created.headers)


async def _dry_run(submission: Submission) -> Response:
    services, caller = submission.services, submission.caller
    async with services.body_turns.beginning.hold(caller.tenant_id):
        fields, new = await submission.checked(lambda: _checked(submission))
    repeat = _repeatable(submission, fields, new, None)
    result = await dry_runs.dry_run(services, caller, new, fields.body, repeat)
    return JSONResponse(result.model_dump(mode="json"))


def _checked(submission: Submission) -> tuple[JobCreate, NewJob]:
    """Raises InvalidRequest."""
    services, caller, body = submission.services, submission.caller, submission.body
    fields, window_max_s = parsed(JobCreate, body), services.settings.submission.completion_window_max_s
    request: ModelRequest | None = None
    if fields.body is None:
        new = bulk_job(caller.tenant_id, fields, body, window_max_s)
    else:
        new, request = online_job(caller.tenant_id, fields, body, window_max_s)
    secret = None if fields.webhook is None else fields.webhook.secret
    ceiling = caller.priority_ceiling
    return fields, services.submitter.check(new, ceiling, request=request, webhook_secret=secret)


def _repeatable(
    submission: Submission, fields: JobCreate, new: NewJob, retry_count: str | None
) -> Repeatable:
    """The name and date of a nightly run are its key."""
    run_key = None if fields.name is None else f"run:{fields.name}:{fields.date}"
    key = run_key or submission.request.headers.get("idempotency-key")
    return repeatable(submission.caller.tenant_id, new.fingerprint, key, retry_count)


def _create_once(submission: Submission, fields: JobCreate, new: NewJob) -> Created:
    services, body, base_url = submission.services, fields.body, submission.services.settings.api.base_url
    retry_count = submission.request.headers.get("x-stainless-retry-count")
    repeat = _repeatable(submission, fields, new, retry_count)
    if body is not None and not repeat.may_be_repeat:
        accepted = services.group_commit.submit(new, body)
        job, shard_id = accepted.submitted.job, accepted.submitted.shard_id
        return Created(job, shard_id, 202, head_json(job, accepted.position, base_url))

    def submit(tx: Transaction, now: datetime) -> Submitted:
        if body is not None:
            return services.submitter.submit_online(tx, new, body, now)
        check_name(tx, new.tenant_id, new.spec.name)
        return services.submitter.submit_bulk(tx, new, now)

    created = create_once(
        services.store, repeat, submit, lambda tx, job, _: accepted_json(tx, job, base_url), 202
    )
    services.ring_sender.send(created.rings)
    return created


def _show(services: Services, caller: Caller, job_id: str) -> tuple[Job, JsonObject]:
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        return job, described_json(tx, job, tx.now(), services.settings.api)


def _wait_s(prefer: str | None) -> int:
    """The seconds in `Prefer: wait=30`, at most `WAIT_MAX_S`; 0 without it."""
    match = _PREFER_WAIT.search(prefer or "")
    return min(int(match[1]), WAIT_MAX_S) if match else 0
