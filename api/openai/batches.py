"""The batches routes: create, list, describe, follow, cancel, delete."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response

from api.access.authentication import Caller
from api.bodies.jobs import BatchOptions, parse_batch
from api.bodies.objects import BatchObject, BatchPage
from api.dependencies import BodyDep, CallerDep, PageDep, ServicesDep, list_json
from api.jobs.deletion import DeletedBatch, delete_ended
from api.jobs.events import Place, follow_job
from api.jobs.idempotency import create_once, repeatable
from api.jobs.requests import batch_request
from api.jobs.views import problem_json, queue_positions
from api.openai.adapter import batch_json, batch_status
from api.responses.streams import event_source
from nightshift.errors import Conflict, InvalidRequest, NotFound
from nightshift.jobs import Face, Job, JobKind, JsonObject
from nightshift.jobs.ids import job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.lifecycle.problems import shown_problem, shown_problems
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

router = APIRouter(prefix="/v1/batches", tags=["OpenAI"])


@router.post("", summary="Create a batch", response_model=BatchObject)
def create_batch(
    services: ServicesDep,
    caller: CallerDep,
    body: BodyDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
) -> Response:
    asked = parse_batch(body)
    window_max_s = services.settings.submission.completion_window_max_s
    with _options_under_nightshift():
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
    return JSONResponse(created.body, created.status_code, created.headers)


@router.get("", summary="List batches, newest first", response_model=BatchPage)
def list_batches(services: ServicesDep, caller: CallerDep, page: PageDep) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        found = tx.jobs.list(
            caller.tenant_id,
            limit=page.limit + 1,
            after=None if page.after is None else _get(tx, caller, page.after, param="after"),
            filters=JobFilters(kind=JobKind.BULK, face=Face.OPENAI),
        )
        positions = queue_positions(tx, found)
        problems = shown_problems(tx, found, now)
        rendered = [
            batch_json(job, positions.get(job.id), problem_json(problems.get(job.id)), now) for job in found
        ]
    return JSONResponse(list_json(rendered, page.limit))


@router.get("/{batch_id}", summary="Describe a batch", response_model=BatchObject)
def get_batch(batch_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return JSONResponse(_render(tx, _get(tx, caller, batch_id), tx.now()))


@router.post("/{batch_id}/cancel", summary="Cancel a batch; what is done stays", response_model=BatchObject)
def cancel_batch(batch_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> JsonObject:
        job, now = _get(tx, caller, batch_id), tx.now()
        if not transitions.cancel(tx, job, now):
            raise Conflict(f"Cannot cancel a batch with status '{batch_status(job)}'.")
        return _render(tx, tx.jobs.fetch(job.id), now)

    shown = services.store.run(stop)
    services.ring_sender.hint()
    return JSONResponse(shown)


@router.delete("/{batch_id}", summary="Delete a batch that has ended", response_model=DeletedBatch)
def delete_batch(batch_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: delete_ended(tx, lambda: _get(tx, caller, batch_id), batch_status))
    return JSONResponse(DeletedBatch(id=batch_id).model_dump())


@router.get("/{batch_id}/events", summary="Follow a batch; resumes after Last-Event-ID")
def follow_batch(
    batch_id: str,
    services: ServicesDep,
    caller: CallerDep,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    place = Place.parse(last_event_id)
    with services.store.snapshot() as tx:
        job = _get(tx, caller, batch_id)
        place.check(tx.events.last_seq(job.id))
    return event_source(follow_job(services, job, None, place))


def _get(tx: Transaction, caller: Caller, batch_id: str, param: str = "id") -> Job:
    job_id = job_id_of_batch(batch_id)
    job = tx.jobs.get(caller.tenant_id, job_id) if job_id is not None else None
    if job is None or (job.face, job.kind) != (Face.OPENAI, JobKind.BULK):
        raise NotFound(f"No such Batch object: {batch_id}", param=param)
    return job


def _render(tx: Transaction, job: Job, now: datetime) -> JsonObject:
    position, problem = queue_positions(tx, [job]).get(job.id), shown_problem(tx, job, now)
    return batch_json(job, position, problem_json(problem), now)


@contextmanager
def _options_under_nightshift() -> Iterator[None]:
    """Errors name options as a batch has them: in its `nightshift`."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is None or error.param.partition(".")[0] not in BatchOptions.model_fields:
            raise
        name = f"nightshift.{error.param}"
        message = error.message.replace(f"'{error.param}'", f"'{name}'", 1)
        raise type(error)(message, param=name, code=error.code) from error
