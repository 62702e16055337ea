"""The routes that change a job: its priority, its metadata, whether it runs; and its retry and deletion."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.jobs import JobRetry, JobUpdate
from api.bodies.objects import AcceptedJob, DescribedJob
from api.dependencies import BodyDep, CallerDep, OptionalBodyDep, ServicesDep, get_job
from api.jobs.idempotency import Created, create_once, repeatable
from api.jobs.requests import retry_job as new_retry
from api.jobs.views import accepted_json, described_json
from api.services.services import Services
from nightshift.errors import Conflict
from nightshift.jobs import Job, JsonObject
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import controls, retry
from nightshift.lifecycle.controls import JobChanges, delete_job
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

Control = Callable[[Transaction, Job], tuple[Ring, ...]]


@router.patch(
    "/{job_id}", summary="Change a job's priority or metadata before it ends", response_model=DescribedJob
)
async def change_job(job_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(JobUpdate, body)
    changes = JobChanges(
        priority=None if fields.priority is None else fields.priority.at_most(caller.priority_ceiling),
        metadata=fields.metadata,
        sets_metadata="metadata" in fields.model_fields_set,
    )

    def change(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        return controls.change(tx, job, changes, tx.now())

    return JSONResponse(await run_in_threadpool(_controlled, services, caller, job_id, change))


@router.post(
    "/{job_id}/pause", summary="Let no more of a job run until it is resumed", response_model=DescribedJob
)
def pause_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def pause(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        controls.pause(tx, job, tx.now())
        return ()

    return JSONResponse(_controlled(services, caller, job_id, pause))


@router.post("/{job_id}/resume", summary="Let a paused job go on", response_model=DescribedJob)
def resume_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def resume(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        return controls.resume(tx, job, tx.now())

    return JSONResponse(_controlled(services, caller, job_id, resume))


def _controlled(services: Services, caller: Caller, job_id: str, act: Control) -> JsonObject:
    """The job as it is after the change, whose rings are sent."""

    def controlled(tx: Transaction) -> tuple[JsonObject, tuple[Ring, ...]]:
        rings = act(tx, get_job(tx, caller, job_id))
        job = get_job(tx, caller, job_id)
        return described_json(tx, job, tx.now(), services.settings.api), rings

    shown, rings = services.store.run(controlled)
    services.ring_sender.send(rings)
    return shown


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
    fields, window_max_s = parsed(JobRetry, body), services.settings.submission.completion_window_max_s
    secret = None if fields.webhook is None else fields.webhook.secret
    with services.store.snapshot() as tx:
        old = get_job(tx, caller, job_id)
        retry.check(old)
        checked = services.submitter.check(
            new_retry(old, fields, body, window_max_s), caller.priority_ceiling, webhook_secret=secret
        )
        new = retry.as_retry(
            tx,
            checked,
            old,
            has_own_output=fields.output is not None,
            has_own_webhook=fields.webhook is not None,
        )

    def render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
        return accepted_json(tx, job, services.settings.api.base_url) | {"retry_of": job.retry_of}

    repeat = repeatable(caller.tenant_id, new.fingerprint, key, retry_count)
    submitter = services.submitter
    return create_once(
        services.store, repeat, lambda tx, now: retry.submit(tx, new, submitter, now), render, 202
    )


class DeletedJob(BaseModel):
    id: str
    object: Literal["job"] = "job"
    deleted: Literal[True] = True


class DeletedBatch(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    deleted: Literal[True] = True


def delete_ended(
    tx: Transaction, find: Callable[[], Job], status_of: Callable[[Job], str] = lambda job: job.state
) -> None:
    """Deletes an ended job. `find` raises NotFound. Raises Conflict for a job that has not ended."""
    if delete_job(tx, find(), tx.now()):
        return
    job = find()  # deleted by a request at the same time: not found
    raise Conflict(
        f"Cannot delete a job with status '{status_of(job)}': cancel it, and delete it when it has ended.",
        code="job_not_ended",
    )
