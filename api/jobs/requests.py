"""Turns a checked body into a new job."""

from dataclasses import replace
from typing import Any, Final

from api.bodies.jobs import BatchCreate, JobCreate, JobRetry, Options, endpoint_named, parse_duration
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest
from nightshift.jobs import Face, Job, JobSpec, JsonObject, NewJob, Webhook
from nightshift.jobs.json_text import fingerprint, json_bytes
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.submission import new_job

JOBS_ROUTE: Final = "/v1/jobs"
BATCHES_ROUTE: Final = "/v1/batches"
UNCONVERTED: Final = ("retry_on_interrupt", "capacity", "metadata")  # a job records them as they were sent


def online_job(
    tenant_id: str, asked: JobCreate, raw: JsonObject, window_max_s: int
) -> tuple[NewJob, ModelRequest]:
    """An online job, and its request. Raises InvalidRequest."""
    assert asked.body is not None, "an online job has a body"
    try:
        request = endpoint_named(asked.endpoint).parse(asked.body)
    except InvalidRequest as error:
        raise error.about(f"body.{error.param}" if error.param else "body") from error
    new = new_job(
        tenant_id,
        Face.NATIVE,
        _spec(asked.endpoint, asked, asked.completion_window, window_max_s, asked.metadata),
        fingerprint=fingerprint(JOBS_ROUTE, raw),
        priority=asked.priority or request.priority_class,
        model=request.model,
        body_bytes=json_bytes(asked.body),
    )
    return new, request


def bulk_job(tenant_id: str, asked: JobCreate, raw: JsonObject, window_max_s: int) -> NewJob:
    """A bulk job with part files under `output`. Raises InvalidRequest."""
    spec = replace(
        _spec(asked.endpoint, asked, asked.completion_window, window_max_s, asked.metadata),
        input=asked.input,
        output=asked.output,
        template=asked.template,
        id_column=asked.id_column,
        format=asked.format,
        name=asked.name,
        run_date=asked.date,
    )
    priority = asked.priority or PriorityClass.STANDARD
    return new_job(tenant_id, Face.NATIVE, spec, fingerprint=fingerprint(JOBS_ROUTE, raw), priority=priority)


def batch_job(tenant_id: str, asked: BatchCreate, raw: JsonObject, window_max_s: int) -> NewJob:
    """An OpenAI batch. Raises InvalidRequest."""
    options, expiry = asked.nightshift, asked.output_expires_after
    spec = replace(
        _spec(asked.endpoint, options, asked.completion_window, window_max_s, asked.metadata),
        input=asked.input_file_id,
        output_expires_after_s=None if expiry is None else expiry.seconds,
    )
    priority = options.priority or PriorityClass.STANDARD
    return new_job(
        tenant_id, Face.OPENAI, spec, fingerprint=fingerprint(BATCHES_ROUTE, raw), priority=priority
    )


def retry_job(old: Job, asked: JobRetry, raw: JsonObject, window_max_s: int) -> NewJob:
    """The earlier job with the fields that are given instead. Raises InvalidRequest."""
    if asked.output is not None and old.face is Face.OPENAI:
        raise InvalidRequest("Invalid 'output': a batch's output is files.", param="output")
    given: dict[str, Any] = {
        name: getattr(asked, name) for name in UNCONVERTED if name in asked.model_fields_set
    }
    if asked.completion_window is not None:
        given["completion_window_s"] = parse_duration(
            asked.completion_window, "completion_window", window_max_s
        )
    if asked.max_runtime is not None:
        given["max_runtime_s"] = parse_duration(asked.max_runtime, "max_runtime", window_max_s)
    if asked.webhook is not None:
        given["webhook"] = Webhook(asked.webhook.url, tuple(asked.webhook.events))
    output = asked.output or old.spec.output
    spec = replace(old.spec, output=output, options=asked.options(old.spec.options), **given)
    return new_job(
        old.tenant_id,
        old.face,
        spec,
        fingerprint=fingerprint(f"{JOBS_ROUTE}/{old.id}/retry", raw),
        priority=asked.priority or old.priority,
    )


def _spec(
    endpoint: str, options: Options, window: str, window_max_s: int, metadata: dict[str, str] | None
) -> JobSpec:
    """The fields that all jobs share."""
    max_runtime, webhook = options.max_runtime, options.webhook
    return JobSpec(
        endpoint=endpoint_named(endpoint).route,
        completion_window_s=parse_duration(window, "completion_window", window_max_s),
        max_runtime_s=None
        if max_runtime is None
        else parse_duration(max_runtime, "max_runtime", window_max_s),
        retry_on_interrupt=options.retry_on_interrupt,
        capacity=options.capacity,
        options=options.options(),
        webhook=None if webhook is None else Webhook(webhook.url, tuple(webhook.events)),
        metadata=metadata,
    )
