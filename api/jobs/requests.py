"""Turns a checked body into a new job."""

from dataclasses import replace
from typing import Any, Final

from api.bodies.jobs import BatchCreate, JobCreate, JobRetry, Options, endpoint_named, parse_duration
from api.dependencies import EncodedBody
from api.responses.times import window_text
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest, about
from nightshift.jobs import Face, Job, JobSpec, JsonObject, NewJob, Webhook
from nightshift.jobs.json_text import fingerprint
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.submission import new_job
from nightshift.schedules.windows import parse_window

JOBS_ROUTE: Final = "/v1/jobs"
COMPLETION_WINDOW: Final = "24h"  # of jobs that name none …
NIGHTS_WINDOW_S: Final = 7 * 86_400  # … and in hours of the day, which are to have several nights
BATCHES_ROUTE: Final = "/v1/batches"
UNCONVERTED: Final = ("retry_on_interrupt", "capacity", "metadata")  # a job records them as they were sent


def online_job(
    tenant_id: str, fields: JobCreate, raw: JsonObject, window_max_s: int
) -> tuple[NewJob, ModelRequest]:
    """An online job, and its request. Raises InvalidRequest."""
    assert fields.body is not None, "an online job has a body"
    try:
        request = endpoint_named(fields.endpoint).parse(fields.body)
    except InvalidRequest as error:
        raise error.about(f"body.{error.param}" if error.param else "body") from error
    encoded = EncodedBody.from_json(fields.body)
    new = new_job(
        tenant_id,
        Face.NATIVE,
        _spec(
            fields.endpoint, fields, _completion_window(fields, window_max_s), window_max_s, fields.metadata
        ),
        fingerprint=fingerprint(JOBS_ROUTE, raw | {"body": encoded.sha256}),
        priority=fields.priority or request.priority_class,
        model=request.model,
        body_bytes=encoded.size_bytes,
    )
    return new, request


def bulk_job(tenant_id: str, fields: JobCreate, raw: JsonObject, window_max_s: int) -> NewJob:
    """A bulk job with part files under `output`. Raises InvalidRequest."""
    assert fields.input is not None, "a bulk job has an input"
    first, *further = [fields.input] if isinstance(fields.input, str) else fields.input
    window = _completion_window(fields, window_max_s)
    spec = replace(
        _spec(fields.endpoint, fields, window, window_max_s, fields.metadata),
        window=None if fields.window is None else _hours(fields.window),
        input=first,
        further_inputs=tuple(further),
        output=fields.output,
        template=fields.template,
        id_column=fields.id_column,
        format=fields.format,
        name=fields.name,
        run_date=fields.date,
    )
    priority = fields.priority or PriorityClass.STANDARD
    return new_job(tenant_id, Face.NATIVE, spec, fingerprint=fingerprint(JOBS_ROUTE, raw), priority=priority)


def batch_job(tenant_id: str, fields: BatchCreate, raw: JsonObject, window_max_s: int) -> NewJob:
    """An OpenAI batch. Raises InvalidRequest."""
    options, expiry = fields.nightshift, fields.output_expires_after
    spec = replace(
        _spec(fields.endpoint, options, fields.completion_window, window_max_s, fields.metadata),
        input=fields.input_file_id,
        output_expires_after_s=None if expiry is None else expiry.seconds,
    )
    priority = options.priority or PriorityClass.STANDARD
    return new_job(
        tenant_id, Face.OPENAI, spec, fingerprint=fingerprint(BATCHES_ROUTE, raw), priority=priority
    )


def retry_job(old: Job, fields: JobRetry, raw: JsonObject, window_max_s: int) -> NewJob:
    """The earlier job with the fields that are given instead. Raises InvalidRequest."""
    if fields.output is not None and old.face is Face.OPENAI:
        raise InvalidRequest("Invalid 'output': a batch's output is files.", param="output")
    given: dict[str, Any] = {
        name: getattr(fields, name) for name in UNCONVERTED if name in fields.model_fields_set
    }
    if fields.completion_window is not None:
        given["completion_window_s"] = parse_duration(
            fields.completion_window, "completion_window", window_max_s
        )
    if "window" in fields.model_fields_set:
        given["window"] = None if fields.window is None else _hours(fields.window)
    if fields.max_runtime is not None:
        given["max_runtime_s"] = parse_duration(fields.max_runtime, "max_runtime", window_max_s)
    if fields.webhook is not None:
        given["webhook"] = Webhook(fields.webhook.url, tuple(fields.webhook.events))
    output = fields.output or old.spec.output
    spec = replace(old.spec, output=output, options=fields.options(old.spec.options), **given)
    return new_job(
        old.tenant_id,
        old.face,
        spec,
        fingerprint=fingerprint(f"{JOBS_ROUTE}/{old.id}/retry", raw),
        priority=fields.priority or old.priority,
    )


def _completion_window(fields: JobCreate, window_max_s: int) -> str:
    if fields.completion_window is not None:
        return fields.completion_window
    return COMPLETION_WINDOW if fields.window is None else window_text(min(NIGHTS_WINDOW_S, window_max_s))


def _hours(text: str) -> str:
    """A window, written in one way. Raises InvalidRequest."""
    with about("window"):
        return str(parse_window(text))


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
