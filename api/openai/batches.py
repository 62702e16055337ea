"""The batches routes: create, list, describe, follow, cancel, delete."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response

from api.access import Caller
from api.bodies import parsed
from api.bodies.jobs import BatchCreate, BatchOptions
from api.bodies.objects import BatchObject, BatchPage
from api.dependencies import BodyDep, CallerDep, ListingDep, ServicesDep
from api.jobs.controls import DeletedBatch, delete_ended
from api.jobs.events import Place, follow_job
from api.jobs.idempotency import create_once, repeatable
from api.jobs.requests import batch_job
from api.jobs.views import problem_json, queue_positions
from api.responses.streams import event_source
from api.responses.times import eta_at, seconds, window_text
from nightshift.errors import Conflict, InvalidRequest, NotFound
from nightshift.jobs import Face, InputError, Job, JobKind, JobState, JsonObject, StopReason, Usage
from nightshift.jobs.files import partial_output_file_id
from nightshift.jobs.ids import batch_id, job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.lifecycle.problems import shown_problem, shown_problems
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

router = APIRouter(prefix="/v1/batches", tags=["OpenAI"])


_STATUS: Final[Mapping[JobState, str]] = {
    JobState.RUNNING: "in_progress",
    JobState.FINALIZING: "finalizing",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}


@router.post("", summary="Create a batch", response_model=BatchObject)
def create_batch(
    services: ServicesDep,
    caller: CallerDep,
    body: BodyDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
) -> Response:
    fields, window_max_s = parsed(BatchCreate, body), services.settings.submission.completion_window_max_s
    webhook = fields.nightshift.webhook
    with _options_under_nightshift():
        new = services.submitter.check(
            batch_job(caller.tenant_id, fields, body, window_max_s),
            caller.priority_ceiling,
            webhook_secret=None if webhook is None else webhook.secret,
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
def list_batches(services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        now = tx.now()
        jobs = tx.jobs.list(
            caller.tenant_id,
            limit=listing.limit + 1,
            after=listing.start(lambda id: _get(tx, caller, id, param="after")),
            filters=JobFilters(kind=JobKind.BULK, face=Face.OPENAI),
        )
        positions = queue_positions(tx, jobs)
        problems = shown_problems(tx, jobs, now)
        rendered = [
            batch_json(job, positions.get(job.id), problem_json(problems.get(job.id)), now) for job in jobs
        ]
    return JSONResponse(listing.json(rendered))


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


def batch_status(job: Job) -> str:
    """OpenAI's status of a job."""
    if job.stop_reason is StopReason.CANCELLED and not job.state.is_terminal:
        return "cancelling"
    if job.state is JobState.QUEUED:
        return "validating" if job.planned_at is None else "in_progress"
    return _STATUS[job.state]


def batch_json(job: Job, queue_position: int | None, problem: JsonObject | None, now: datetime) -> JsonObject:
    """A job as a Batch, with one additional key."""
    cancelling_at = job.stop_requested_at if job.stop_reason is StopReason.CANCELLED else None
    ended = {job.state: job.finished_at}
    return {
        "id": batch_id(job.id),
        "object": "batch",
        "endpoint": job.spec.endpoint,
        "model": job.model,
        "errors": _errors_json(job.errors),
        "input_file_id": job.spec.input,
        "completion_window": window_text(job.spec.completion_window_s),
        "status": batch_status(job),
        "output_file_id": job.output_file_id,
        "error_file_id": job.error_file_id,
        "created_at": seconds(job.created_at),
        "in_progress_at": seconds(job.planned_at),
        "expires_at": seconds(job.deadline_at),
        "finalizing_at": seconds(job.finalizing_at),
        "completed_at": seconds(ended.get(JobState.SUCCEEDED)),
        "failed_at": seconds(ended.get(JobState.FAILED)),
        "expired_at": seconds(ended.get(JobState.EXPIRED)),
        "cancelling_at": seconds(cancelling_at),
        "cancelled_at": seconds(ended.get(JobState.CANCELLED)),
        "request_counts": {
            "total": job.counts.total or 0,
            "completed": job.counts.succeeded,
            "failed": job.counts.failed,
        },
        "usage": _usage_json(job.usage),
        "metadata": job.spec.metadata,
        "nightshift": {
            "job_id": job.id,
            "priority": job.priority,
            "eta_at": seconds(eta_at(job, now)),
            "queue_position": queue_position,
            "partial_output_file_id": _partial_output_file_id(job),
            "rows_unlisted": job.rows_unlisted,
            "problem": problem,
        },
    }


def _partial_output_file_id(job: Job) -> str | None:
    """The id of the file of a running batch's output so far. Once the rows have ended, there is the
    output.
    """
    return None if job.planned_at is None or job.state.is_terminal else partial_output_file_id(job.id)


def _errors_json(errors: Sequence[InputError]) -> JsonObject | None:
    if not errors:
        return None
    data = [
        {"code": error.code, "line": error.line, "message": error.message, "param": error.param}
        for error in errors
    ]
    return {"object": "list", "data": data}


def _usage_json(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
