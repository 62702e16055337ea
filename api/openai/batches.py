"""The batches routes: create, list, describe, cancel."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response

from api.authentication import Caller
from api.dependencies import BodyDep, CallerDep, PageDep, ServicesDep, list_json
from api.jobs.bodies import parse_batch
from api.jobs.idempotency import create_once, repeatable
from api.jobs.requests import batch_request
from api.openai.adapter import batch_json, batch_status
from nightshift.errors import Conflict, NotFound
from nightshift.jobs import Face, Job, JobKind, JobState, JsonObject
from nightshift.jobs.ids import job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/batches", tags=["OpenAI"])


@router.post("", summary="Create a batch")
def create_batch(
    services: ServicesDep,
    caller: CallerDep,
    body: BodyDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
) -> Response:
    asked = parse_batch(body)
    window_max_s = services.settings.submission.completion_window_max_s
    new = services.submitter.check(
        batch_request(caller.tenant_id, asked, body, window_max_s), caller.priority_ceiling
    )
    request = repeatable(caller.tenant_id, new.fingerprint, idempotency_key, x_stainless_retry_count)
    created = create_once(
        services.store,
        request,
        lambda tx, now: services.submitter.submit_bulk(tx, new, now),
        _render,
        200,
    )
    return JSONResponse(created.body, created.status_code)


@router.get("", summary="List batches, newest first")
def list_batches(services: ServicesDep, caller: CallerDep, page: PageDep) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        found = tx.jobs.list(
            caller.tenant_id,
            limit=page.limit + 1,
            after=None if page.after is None else _get(tx, caller, page.after, param="after"),
            kind=JobKind.BULK,
            face=Face.OPENAI,
        )
        rendered = [_render(tx, job, now) for job in found]
    return JSONResponse(list_json(rendered, page.limit))


@router.get("/{batch_id}", summary="Describe a batch")
def get_batch(batch_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return JSONResponse(_render(tx, _get(tx, caller, batch_id), tx.now()))


@router.post("/{batch_id}/cancel", summary="Cancel a batch; what is done stays")
def cancel_batch(batch_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> JsonObject:
        job, now = _get(tx, caller, batch_id), tx.now()
        if not transitions.cancel(tx, job, now):
            raise Conflict(f"Cannot cancel a batch with status '{batch_status(job)}'.")
        return _render(tx, tx.jobs.fetch(job.id), now)

    shown = services.store.run(stop)
    services.ring_sender.hint()
    return JSONResponse(shown)


def _get(tx: Transaction, caller: Caller, batch_id: str, param: str = "id") -> Job:
    job_id = job_id_of_batch(batch_id)
    job = tx.jobs.get(caller.tenant_id, job_id) if job_id is not None else None
    if job is None or (job.face, job.kind) != (Face.OPENAI, JobKind.BULK):
        raise NotFound(f"No such Batch object: {batch_id}", param=param)
    return job


def _render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
    position = tx.jobs.queue_position(job) if job.state is JobState.QUEUED else None
    return batch_json(job, position, now)
