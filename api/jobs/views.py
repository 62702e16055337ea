"""A job as /v1/jobs shows it, without secrets."""

from datetime import datetime

from api.responses.times import eta_at, seconds, window_text
from nightshift.endpoints.answers import usage_json
from nightshift.jobs import InputError, Job, JobSpec, JobState, JsonObject
from nightshift.lifecycle.transitions import counts_json
from nightshift.store import Transaction


def links(job_id: str, base_url: str) -> JsonObject:
    """The URLs of a job's routes."""
    itself = f"{base_url.rstrip('/')}/v1/jobs/{job_id}"
    return {
        "self": itself,
        "events": f"{itself}/events",
        "results": f"{itself}/results",
        "cancel": f"{itself}/cancel",
    }


def accepted_json(tx: Transaction, job: Job, base_url: str) -> JsonObject:
    """The answer to a create."""
    return {
        "id": job.id,
        "object": "job",
        "status": job.state,
        "queue_position": _queue_position(tx, job),
        "links": links(job.id, base_url),
    }


def job_json(tx: Transaction, job: Job, now: datetime, base_url: str) -> JsonObject:
    found = [_error_json(error) for error in job.errors]
    return (
        accepted_json(tx, job, base_url)
        | {
            "kind": job.kind,
            "model": job.model,
            "priority": job.priority,
            "stop_reason": job.stop_reason,
            "counts": counts_json(job),
            "rows_estimated": job.rows_estimated,
            "usage": usage_json(job.usage),
            "tokens_redone": job.tokens_redone,
            "eta_at": seconds(eta_at(job, now)),
            "error": found[0] if found else None,
            "errors": found,
            "output_file_id": job.output_file_id,
            "error_file_id": job.error_file_id,
        }
        | _request_json(job.spec)
        | _times_json(job)
    )


def listed_json(tx: Transaction, job: Job, now: datetime, base_url: str) -> JsonObject:
    """A job in a list: without its template, which lists do not read."""
    shown = job_json(tx, job, now, base_url)
    del shown["template"]
    return shown


def _queue_position(tx: Transaction, job: Job) -> int | None:
    """From 1; None outside the queue."""
    return tx.jobs.queue_position(job) if job.state is JobState.QUEUED else None


def _request_json(spec: JobSpec) -> JsonObject:
    """The request as sent."""
    webhook = spec.webhook
    return {
        "endpoint": spec.endpoint,
        "input": spec.input,
        "output": spec.output,
        "template": spec.template,
        "id_column": spec.id_column,
        "format": spec.format,
        "completion_window": window_text(spec.completion_window_s),
        "max_runtime": None if spec.max_runtime_s is None else window_text(spec.max_runtime_s),
        "retry_on_interrupt": spec.retry_on_interrupt,
        "capacity": spec.capacity,
        "max_error_rate": spec.max_error_rate,
        "webhook": None if webhook is None else {"url": webhook.url, "events": list(webhook.events)},
        "metadata": spec.metadata,
        "name": spec.name,
        "date": spec.run_date,
    }


def _times_json(job: Job) -> JsonObject:
    return {
        "created_at": seconds(job.created_at),
        "expires_at": seconds(job.deadline_at),
        "planned_at": seconds(job.planned_at),
        "started_at": seconds(job.started_at),
        "stop_requested_at": seconds(job.stop_requested_at),
        "finalizing_at": seconds(job.finalizing_at),
        "finished_at": seconds(job.finished_at),
    }


def _error_json(error: InputError) -> JsonObject:
    return {"code": error.code, "message": error.message, "line": error.line, "param": error.param}
