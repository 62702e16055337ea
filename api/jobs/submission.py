"""From a checked body to a job: what may be named, what must exist, what is kept secret.

Nothing here writes; the transaction that does is `nightshift/lifecycle/transitions.py`'s.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from api.admission import admit_bulk, admit_online
from api.jobs.bodies import BatchCreate, JobCreate, Options, WebhookBody
from api.jobs.fingerprints import fingerprint
from api.responses.times import parse_window
from api.services import Services
from nightshift.endpoints.requests import parse_request
from nightshift.errors import InvalidRequest
from nightshift.jobs import Endpoint, Face, JobKind, JobSpec, JsonObject, NewJob, Webhook
from nightshift.jobs.files import FilePurpose
from nightshift.jobs.ids import new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted
from nightshift.objectstore import ObjectUri
from nightshift.objectstore.sources import is_file_id
from nightshift.outbound.safe_http import check_url
from nightshift.outbound.webhooks import InvalidSecret, secret_key
from nightshift.store import Transaction

JOBS_ROUTE: Final = "/v1/jobs"
BATCHES_ROUTE: Final = "/v1/batches"


def online_from(services: Services, tenant_id: str, asked: JobCreate, raw: JsonObject) -> NewJob:
    """One request, to be run as soon as possible. Raises InvalidRequest."""
    assert asked.body is not None
    endpoint = asked.endpoint_asked
    try:
        request = parse_request(endpoint, asked.body)
    except InvalidRequest as error:
        raise _about(f"body.{error.param}" if error.param else "body", error) from error
    return NewJob(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=JobKind.ONLINE,
        face=Face.NATIVE,
        priority=asked.priority or request.priority_class,
        model=request.model,
        spec=_spec(services, endpoint, asked, asked.completion_window, metadata=asked.metadata),
        fingerprint=fingerprint(JOBS_ROUTE, raw),
        webhook_secret=_encrypted_secret(services, asked.webhook),
    )


def bulk_from(services: Services, tenant_id: str, asked: JobCreate, raw: JsonObject) -> NewJob:
    """An input of many rows, laid out as part files under `output`. Raises InvalidRequest."""
    assert asked.input is not None
    assert asked.output is not None
    output = _check_location(services, asked.output, "output")
    if output.is_pattern:
        raise InvalidRequest("Invalid 'output': a pattern is no place to write to.", param="output")
    if not is_file_id(asked.input):
        _check_apart(_check_location(services, asked.input, "input"), output)
    spec = _spec(services, asked.endpoint_asked, asked, asked.completion_window, metadata=asked.metadata)
    return NewJob(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=JobKind.BULK,
        face=Face.NATIVE,
        priority=asked.priority or PriorityClass.STANDARD,
        model=_model_of(asked.template),
        spec=replace(
            spec,
            input=asked.input,
            output=asked.output,
            template=asked.template,
            id_column=asked.id_column,
            format=asked.format,
            name=asked.name,
            run_date=asked.date,
        ),
        fingerprint=fingerprint(JOBS_ROUTE, raw),
        webhook_secret=_encrypted_secret(services, asked.webhook),
    )


def bulk_from_batch(services: Services, tenant_id: str, asked: BatchCreate, raw: JsonObject) -> NewJob:
    """An OpenAI batch. Raises InvalidRequest."""
    if not is_file_id(asked.input_file_id):
        _check_location(services, asked.input_file_id, "input_file_id")
    options, expiry = asked.nightshift, asked.output_expires_after
    spec = _spec(services, asked.endpoint_asked, options, asked.completion_window, metadata=asked.metadata)
    return NewJob(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=JobKind.BULK,
        face=Face.OPENAI,
        priority=options.priority or PriorityClass.STANDARD,
        model=None,
        spec=replace(
            spec,
            input=asked.input_file_id,
            output_expires_after_s=None if expiry is None else expiry.seconds,
        ),
        fingerprint=fingerprint(BATCHES_ROUTE, raw),
        webhook_secret=_encrypted_secret(services, options.webhook),
    )


def submit_online(
    tx: Transaction, services: Services, new: NewJob, body: JsonObject, now: datetime
) -> Submitted:
    """Accept an online job. Raises UnknownModel, TooManyRequests."""
    assert new.model is not None, "an online request names its model"
    services.catalogue.check(tx, new.model, new.spec.endpoint)
    admit_online(tx, new.tenant_id, services.settings.api, now)
    return transitions.submit_online(tx, new, body, now)


def submit_bulk(tx: Transaction, services: Services, new: NewJob, now: datetime) -> Submitted:
    """Accept a bulk job. Raises InvalidRequest, UnknownModel, TooManyRequests."""
    assert new.spec.input is not None, "a bulk job names its input"
    if is_file_id(new.spec.input):
        _check_file(tx, new, new.spec.input, now)
    if new.model is not None:
        services.catalogue.check(tx, new.model, new.spec.endpoint)
    admit_bulk(tx, new.tenant_id, services.settings.api, now)
    return transitions.submit_bulk(tx, new, now)


def run_key(asked: JobCreate) -> str | None:
    """The idempotency key of a nightly run: the same name and date is the same run."""
    return f"run:{asked.name}:{asked.date}" if asked.name is not None else None


def _spec(
    services: Services, endpoint: Endpoint, options: Options, window: str, *, metadata: dict[str, str] | None
) -> JobSpec:
    """What all jobs have in common."""
    window_max_s = services.settings.api.completion_window_max_s
    max_runtime = options.max_runtime
    return JobSpec(
        endpoint=endpoint,
        completion_window_s=parse_window(window, "completion_window", window_max_s),
        max_runtime_s=None if max_runtime is None else parse_window(max_runtime, "max_runtime", window_max_s),
        retry_on_interrupt=options.retry_on_interrupt,
        capacity=options.capacity,
        max_error_rate=options.max_error_rate,
        webhook=_checked_webhook(services, options.webhook),
        metadata=metadata,
    )


def _checked_webhook(services: Services, asked: WebhookBody | None) -> Webhook | None:
    if asked is None:
        return None
    try:
        check_url(asked.url, services.settings.api.webhook_allow_cidrs)
    except InvalidRequest as error:
        raise _about("webhook.url", error) from error
    return Webhook(asked.url, tuple(asked.events))


def _encrypted_secret(services: Services, asked: WebhookBody | None) -> bytes | None:
    if asked is None or asked.secret is None:
        return None
    try:
        secret_key(asked.secret)
    except InvalidSecret as error:
        raise InvalidRequest(f"Invalid 'webhook.secret': {error}", param="webhook.secret") from error
    return services.vault.encrypt(asked.secret)


def _check_location(services: Services, text: str, param: str) -> ObjectUri:
    try:
        uri = ObjectUri.parse(text)
        services.locations.check(uri)
    except InvalidRequest as error:
        raise _about(param, error) from error
    return uri


def _check_apart(source: ObjectUri, output: ObjectUri) -> None:
    """Raises InvalidRequest if a job would write over its input, or, run again, read what it wrote."""
    reads_many = source.is_pattern or source.is_prefix
    prefix = output.key if output.is_prefix else f"{output.key}/"
    is_inside = output.key == source.key or (reads_many and prefix.startswith(source.folder))
    if is_inside and (output.scheme, output.bucket) == (source.scheme, source.bucket):
        raise InvalidRequest(
            "Invalid 'output': it may not lie in the folder the input is read from.", param="output"
        )


def _check_file(tx: Transaction, new: NewJob, file_id: str, now: datetime) -> None:
    param = "input_file_id" if new.face is Face.OPENAI else "input"
    file = tx.files.get_to_read(new.tenant_id, file_id, now)
    if file is None:
        raise InvalidRequest(f"No such File object: {file_id}", param=param, code="file_not_found")
    if new.face is Face.OPENAI and file.purpose is not FilePurpose.BATCH:
        raise InvalidRequest(
            f"Invalid '{param}': the file's purpose is '{file.purpose}', not 'batch'.", param=param
        )


def _model_of(template: JsonObject | None) -> str | None:
    """The model a template names for every row; None if the rows do."""
    model = template.get("model") if template else None
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(
            "Invalid 'template.model': a model's id is text.", param="template.model", code="invalid_type"
        )
    return model


def _about(param: str, error: InvalidRequest) -> InvalidRequest:
    """The same error, naming the field the caller sent."""
    return type(error)(f"Invalid '{param}': {error.message}", param=param, code=error.code)
