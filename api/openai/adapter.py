"""Converts between OpenAI's objects and ours."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from api.responses.times import eta_at, seconds, window_text
from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.jobs import (
    Face,
    InputError,
    Job,
    JobSpec,
    JobState,
    JsonObject,
    StopReason,
    Usage,
)
from nightshift.jobs.files import File, partial_output_file_id
from nightshift.jobs.ids import batch_id
from nightshift.jobs.json_text import fingerprint, json_bytes
from nightshift.lifecycle.submission import JobRequest

_STATUS: Final[Mapping[JobState, str]] = {
    JobState.RUNNING: "in_progress",
    JobState.FINALIZING: "finalizing",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}


def online_request(
    endpoint: Endpoint, request: ModelRequest, body: JsonObject, tenant_id: str, wait_s: float
) -> JobRequest:
    """A model request as a job. The client waits `wait_s` for the answer."""
    return JobRequest(
        tenant_id=tenant_id,
        face=Face.OPENAI,
        priority=request.priority_class,
        model=request.model,
        spec=JobSpec(
            endpoint=endpoint.route,
            completion_window_s=math.ceil(wait_s),
            service_tier=request.service_tier,
        ),
        fingerprint=fingerprint(endpoint.route, body),
        body_bytes=json_bytes(body),
        request=request,
    )


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


def file_json(file: File) -> JsonObject:
    """A file as a File object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": seconds(file.created_at),
        "expires_at": seconds(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _partial_output_file_id(job: Job) -> str | None:
    """While rows may run; afterwards there is the output."""
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
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
