"""Turns a checked body into a job request."""

from dataclasses import replace
from typing import Final

from api.bodies.jobs import BatchCreate, JobCreate, JobRetry, Options
from api.responses.times import parse_window
from nightshift.endpoints import Endpoint
from nightshift.errors import InvalidRequest
from nightshift.jobs import Face, Job, JobSpec, JsonObject, Webhook
from nightshift.jobs.json_text import fingerprint, json_bytes
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.submission import JobRequest

JOBS_ROUTE: Final = "/v1/jobs"
BATCHES_ROUTE: Final = "/v1/batches"
UNCONVERTED: Final = ("retry_on_interrupt", "capacity", "metadata")  # a job records them as they were sent


def online_request(tenant_id: str, asked: JobCreate, raw: JsonObject, window_max_s: int) -> JobRequest:
    """An online request. Raises InvalidRequest."""
    assert asked.body is not None
    endpoint = asked.endpoint_asked
    try:
        request = endpoint.parse(asked.body)
    except InvalidRequest as error:
        raise error.about(f"body.{error.param}" if error.param else "body") from error
    return JobRequest(
        tenant_id=tenant_id,
        face=Face.NATIVE,
        priority=asked.priority or request.priority_class,
        model=request.model,
        spec=_job_spec(asked, window_max_s),
        fingerprint=fingerprint(JOBS_ROUTE, raw),
        body_bytes=json_bytes(asked.body),
        request=request,
        webhook_secret=_webhook_secret(asked),
    )


def bulk_request(tenant_id: str, asked: JobCreate, raw: JsonObject, window_max_s: int) -> JobRequest:
    """A bulk request with part files under `output`. Raises InvalidRequest."""
    spec = replace(
        _job_spec(asked, window_max_s),
        input=asked.input,
        output=asked.output,
        template=asked.template,
        id_column=asked.id_column,
        format=asked.format,
        name=asked.name,
        run_date=asked.date,
    )
    return JobRequest(
        tenant_id=tenant_id,
        face=Face.NATIVE,
        priority=asked.priority or PriorityClass.STANDARD,
        spec=spec,
        fingerprint=fingerprint(JOBS_ROUTE, raw),
        webhook_secret=_webhook_secret(asked),
    )


def batch_request(tenant_id: str, asked: BatchCreate, raw: JsonObject, window_max_s: int) -> JobRequest:
    """An OpenAI batch. Raises InvalidRequest."""
    options, expiry = asked.nightshift, asked.output_expires_after
    spec = replace(
        _spec(asked.endpoint_asked, options, asked.completion_window, window_max_s, asked.metadata),
        input=asked.input_file_id,
        output_expires_after_s=None if expiry is None else expiry.seconds,
    )
    return JobRequest(
        tenant_id=tenant_id,
        face=Face.OPENAI,
        priority=options.priority or PriorityClass.STANDARD,
        spec=spec,
        fingerprint=fingerprint(BATCHES_ROUTE, raw),
        webhook_secret=_webhook_secret(options),
    )


def retry_request(old: Job, asked: JobRetry, raw: JsonObject, window_max_s: int) -> JobRequest:
    """The earlier job's request with what is asked for instead. Raises InvalidRequest."""
    if asked.output is not None and old.face is Face.OPENAI:
        raise InvalidRequest("Invalid 'output': a batch's output is files.", param="output")
    window, runtime, webhook = asked.completion_window, asked.max_runtime, asked.webhook
    spec = replace(_given(old.spec, asked), output=asked.output or old.spec.output)
    if window is not None:
        window_s = parse_window(window, "completion_window", window_max_s)
        spec = replace(spec, completion_window_s=window_s)
    if runtime is not None:
        spec = replace(spec, max_runtime_s=parse_window(runtime, "max_runtime", window_max_s))
    spec = replace(spec, options=asked.options(old.spec.options))
    if webhook is not None:
        spec = replace(spec, webhook=Webhook(webhook.url, tuple(webhook.events)))
    return JobRequest(
        tenant_id=old.tenant_id,
        face=old.face,
        priority=asked.priority or old.priority,
        spec=spec,
        fingerprint=fingerprint(f"{JOBS_ROUTE}/{old.id}/retry", raw),
        webhook_secret=_webhook_secret(asked),
    )


def _given(spec: JobSpec, asked: JobRetry) -> JobSpec:
    """With the fields that need no conversion, as far as they were given."""
    given = asked.model_fields_set
    return replace(spec, **{name: getattr(asked, name) for name in UNCONVERTED if name in given})


def run_key(asked: JobCreate) -> str | None:
    """The idempotency key of a nightly run, by name and date."""
    return f"run:{asked.name}:{asked.date}" if asked.name is not None else None


def _job_spec(asked: JobCreate, window_max_s: int) -> JobSpec:
    return _spec(asked.endpoint_asked, asked, asked.completion_window, window_max_s, asked.metadata)


def _spec(
    endpoint: Endpoint, options: Options, window: str, window_max_s: int, metadata: dict[str, str] | None
) -> JobSpec:
    """The fields that all jobs share."""
    max_runtime, webhook = options.max_runtime, options.webhook
    return JobSpec(
        endpoint=endpoint.route,
        completion_window_s=parse_window(window, "completion_window", window_max_s),
        max_runtime_s=None if max_runtime is None else parse_window(max_runtime, "max_runtime", window_max_s),
        retry_on_interrupt=options.retry_on_interrupt,
        capacity=options.capacity,
        options=options.options(),
        webhook=None if webhook is None else Webhook(webhook.url, tuple(webhook.events)),
        metadata=metadata,
    )


def _webhook_secret(options: Options) -> str | None:
    return None if options.webhook is None else options.webhook.secret
