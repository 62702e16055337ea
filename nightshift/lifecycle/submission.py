"""Checks and accepts jobs, for the API, the scheduler and replays.

A `NewJob` is checked outside of any transaction; the accepting transaction makes the checks that read the
database.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from nightshift import endpoints
from nightshift.bulk.results.destinations import place_of, without_links
from nightshift.endpoints.endpoint import check_sizes
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest, about
from nightshift.jobs import Face, JobKind, JobSpec, JsonObject, NewJob
from nightshift.jobs.files import File, FilePurpose
from nightshift.jobs.ids import SUFFIX_LENGTH, new_id
from nightshift.jobs.options import DELTA
from nightshift.jobs.part import errors_name, is_output_name
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.lifecycle.admission import admit_bulk, admit_online, check_planned
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.reuse import with_reused_job
from nightshift.lifecycle.transitions import Submitted
from nightshift.objectstore import Locations, ObjectUri
from nightshift.objectstore.objects import checked_key, checked_path
from nightshift.objectstore.sources import is_file_id
from nightshift.outbound.safe_http import EgressConfig, check_url
from nightshift.outbound.webhooks import InvalidSecret, secret_key
from nightshift.process.settings import SubmissionSettings
from nightshift.process.tracing.spans import current_traceparent
from nightshift.schedules.windows import check_length, check_opens_in_time
from nightshift.store import Transaction
from nightshift.tenants.quotas import NO_QUOTAS, Quotas
from nightshift.tenants.vault import Vault

NO_ID: Final = f"job_{'0' * SUFFIX_LENGTH}"  # of the length that they have


@dataclass(frozen=True)
class Submitter:
    locations: Locations
    vault: Vault
    catalogue: CachedCatalogue
    settings: SubmissionSettings
    default_quotas: Quotas = NO_QUOTAS  # of tenants without their own

    def check(
        self,
        new: NewJob,
        ceiling: PriorityClass,
        *,
        request: ModelRequest | None = None,
        webhook_secret: str | None = None,
    ) -> NewJob:
        """The checked job, in no better class than the tenant's ceiling. Raises InvalidRequest.

        `request`: an online job's parsed body. Without a `webhook_secret`, the tenant's own signs.
        """
        spec = new.spec
        if request is not None:
            self._check_sizes(new, request)
        if spec.template is not None:
            _check_template(spec.template, self.settings.template_bytes_max)
        if spec.input is not None:
            _check_locations(new, self.locations)
            _check_effort(spec)
            with about("window"):
                if spec.hours is not None:
                    check_length(spec.hours, self.settings.segment_interval_s)
        if spec.webhook is not None:
            check_webhook_url(spec.webhook.url, self.settings, "webhook.url")
        secret = None if webhook_secret is None else _encrypted(webhook_secret, self.vault)
        return replace(new, priority=new.priority.at_most(ceiling), webhook_secret=secret)

    def _check_sizes(self, new: NewJob, request: ModelRequest) -> None:
        """Checks what a worker checks again: it knows its model."""
        model = None if new.model is None else self.catalogue.known(new.model)
        if model is not None:
            try:
                endpoint = endpoints.get(new.spec.endpoint)
                check_sizes(endpoint, request, model, self.settings.answer_bytes_max)
            except InvalidRequest as error:
                at = f"body.{error.param}" if new.face is Face.NATIVE else error.param
                raise error.about(at or "body") from error

    def submit_online(self, tx: Transaction, new: NewJob, body: JsonObject, now: datetime) -> Submitted:
        """Accepts an online job. Raises UnknownModel, InvalidRequest, TooManyRequests."""
        new = self.admit_online(tx, new, body, now)
        return transitions.insert_online(tx, [(new, body)], now)[0]

    def admit_online(self, tx: Transaction, new: NewJob, body: JsonObject, now: datetime) -> NewJob:
        """Counts an online job, which this transaction is to insert. Raises as `submit_online`."""
        assert new.model is not None, "an online request names its model"
        self.try_model(tx, new)
        new = admit_online(tx, new, body, self.settings, self.default_quotas, now)
        transitions.count_online(tx, new, now)
        return new

    def submit_bulk(self, tx: Transaction, new: NewJob, now: datetime) -> Submitted:
        """Accepts a bulk job. Raises InvalidRequest, UnknownModel, TooManyRequests."""
        assert new.spec.input is not None, "a bulk job names its input"
        if is_file_id(new.spec.input):
            file = tx.files.get_to_read(new.tenant_id, new.spec.input, now)
            _checked_file(file, new, new.spec.input)
        if new.spec.options.reuse is not None:
            new = with_reused_job(tx, new)
        return self.submit_unread(tx, new, now)

    def try_online(self, tx: Transaction, new: NewJob, body: JsonObject, now: datetime) -> None:
        """Raises what `submit_online` would; only reads."""
        self.try_model(tx, new)
        admit_online(tx, new, body, self.settings, self.default_quotas, now)

    def try_bulk(self, tx: Transaction, new: NewJob, now: datetime) -> None:
        """Raises what `submit_bulk` would; only reads."""
        check_hours(new.spec, now)
        self.try_model(tx, new)
        self.try_file(tx, new, now)
        with_reused_job(tx, new)
        admit_bulk(tx, new, self.settings, self.default_quotas, now)
        if (place := place_of(new.spec)) is not None:
            tx.jobs.check_output(new.tenant_id, place)

    def try_file(self, tx: Transaction, new: NewJob, now: datetime) -> File | None:
        """The uploaded file that the job would read, if it is one. Raises InvalidRequest."""
        if new.spec.input is None or not is_file_id(new.spec.input):
            return None
        return _checked_file(tx.files.get(new.tenant_id, new.spec.input, now), new, new.spec.input)

    def try_model(self, tx: Transaction, new: NewJob) -> None:
        """Raises UnknownModel, or InvalidRequest for one of another kind, if the job names a model."""
        if new.model is not None:
            self.catalogue.check(tx, new.model, new.spec.endpoint)

    def try_plan(self, tx: Transaction, new: NewJob, rows: int, tokens: int) -> None:
        """Raises QuotaExceeded if so much more would be refused when the input is read; only reads."""
        check_planned(tx, new.tenant_id, self.default_quotas, rows, tokens)

    def submit_unread(self, tx: Transaction, new: NewJob, now: datetime) -> Submitted:
        """Accepts a bulk job whose input may not exist yet. Raises InvalidRequest, UnknownModel,
        TooManyRequests.
        """
        check_hours(new.spec, now)
        self.try_model(tx, new)
        admit_bulk(tx, new, self.settings, self.default_quotas, now)
        return transitions.submit_bulk(tx, new, now)


def new_job(
    tenant_id: str,
    face: Face,
    spec: JobSpec,
    *,
    fingerprint: str,  # of the route and body
    priority: PriorityClass = PriorityClass.STANDARD,
    model: str | None = None,
    body_bytes: int = 0,
) -> NewJob:
    """Makes every job, which joins the current trace. It is online if its `spec` has no input.

    `model`, `body_bytes`: of an online job's body. A bulk job's template or rows name its model. Raises
    InvalidRequest.
    """
    is_online = spec.input is None
    return NewJob(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=JobKind.ONLINE if is_online else JobKind.BULK,
        face=face,
        priority=priority,
        model=model if is_online else _model_of(spec.template),
        spec=spec,
        fingerprint=fingerprint,
        body_bytes=body_bytes,
        stored_bytes=body_bytes + spec.stored_bytes,
        traceparent=current_traceparent(),
    )


def check_hours(spec: JobSpec, now: datetime) -> None:
    """Raises InvalidRequest for a job submitted now that would be over before its window first opens."""
    if spec.hours is not None:
        with about("completion_window"):
            check_opens_in_time(spec.hours, now + timedelta(seconds=spec.completion_window_s), now)


def _check_template(template: JsonObject, bytes_max: int) -> None:
    size_bytes = len(json.dumps(template, ensure_ascii=False).encode(errors="surrogatepass"))
    if size_bytes > bytes_max:
        raise InvalidRequest(
            f"Invalid 'template': it has {size_bytes} bytes as JSON, and at most {bytes_max} are accepted.",
            param="template",
        )


def _check_effort(spec: JobSpec) -> None:
    """Raises InvalidRequest for an effort of thinking where no row could have one."""
    if spec.options.reasoning_effort is not None and not endpoints.get(spec.endpoint).effort_path:
        raise InvalidRequest(
            f"'reasoning_effort' is for endpoints that answer conversations; {spec.endpoint} is none.",
            param="reasoning_effort",
            code="unsupported_parameter",
        )


def _check_locations(new: NewJob, locations: Locations) -> None:
    """Raises InvalidRequest for what may not be read or written, or what the store cannot hold: not first
    once the rows have run.
    """
    spec, param = new.spec, _input_param(new.face)
    assert spec.input is not None, "a bulk job names its input"
    output = None
    if spec.output is not None:
        with about("output"):
            output = ObjectUri.parse(spec.output)
            locations.check(output, new.tenant_id)
            if output.is_pattern or output.scheme == "hf":
                raise InvalidRequest("a pattern or a dataset of a hub is no place to write to.")
            checked_path(f"{_prefix(output)}{errors_name(9_999_999, NO_ID, spec.format)}")
    if spec.options.input_format == DELTA:
        _check_table(spec, param)
    if spec.further_inputs:
        _check_list(new, locations, output)
        return
    if is_file_id(spec.input):
        return
    with about(param):
        source = _checked_input(spec.input, new.tenant_id, locations)
        if new.face is Face.OPENAI and _reads_many(source):
            raise InvalidRequest("a batch has one object; POST /v1/jobs takes patterns and folders.")
    if output is not None:
        _check_apart(source, output)


def _check_table(spec: JobSpec, param: str) -> None:
    """Raises InvalidRequest unless the input is one folder."""
    (first, *further) = spec.inputs
    is_folder = not is_file_id(first) and (uri := ObjectUri.parse(first)).is_prefix and not uri.is_pattern
    if further or not is_folder:
        raise InvalidRequest(
            f"Invalid '{param}': a Delta table is named by its folder alone, with a slash at its end: "
            "s3://bucket/table/",
            param=param,
        )


def _check_list(new: NewJob, locations: Locations, output: ObjectUri | None) -> None:
    """Raises InvalidRequest, naming the entry, unless all are objects of their own."""
    numbers: dict[str, int] = {}
    for number, text in enumerate(new.spec.inputs):
        with about(f"input[{number}]"):
            if is_file_id(text):
                raise InvalidRequest("an uploaded file is an input by itself, not one of a list.")
            source = _checked_input(text, new.tenant_id, locations)
            if _reads_many(source):
                raise InvalidRequest("a pattern or a folder is an input by itself, not one of a list.")
            first = numbers.setdefault(str(source), number)
            if first != number:
                raise InvalidRequest(f"it is the same object as input[{first}]: its rows would run twice.")
        if output is not None:
            _check_apart(source, output)


def _checked_input(text: str, tenant_id: str, locations: Locations) -> ObjectUri:
    source = ObjectUri.parse(text)
    locations.check(source, tenant_id)
    if not _reads_many(source):
        (checked_key if source.scheme == "s3" else checked_path)(source.key)
    return source


def _reads_many(source: ObjectUri) -> bool:
    return source.is_pattern or source.is_prefix


def _prefix(output: ObjectUri) -> str:
    return output.key if output.is_prefix else f"{output.key}/"


def _check_apart(source: ObjectUri, output: ObjectUri) -> None:
    """Raises InvalidRequest if a job would overwrite its input, or read its own output when run again."""
    source, output = without_links(source), without_links(output)
    prefix = _prefix(output)
    is_inside = output.key == source.key or (_reads_many(source) and prefix.startswith(source.folder))
    is_inside |= is_output_name(source.key.removeprefix(prefix)) and source.key.startswith(prefix)
    if is_inside and (output.scheme, output.bucket) == (source.scheme, source.bucket):
        raise InvalidRequest(
            "Invalid 'output': it may not lie in the folder the input is read from.", param="output"
        )


def egress_config(settings: SubmissionSettings) -> EgressConfig:
    """The networks and ports that webhooks may reach."""
    return EgressConfig(settings.webhook_allow_cidrs, settings.webhook_port_ranges)


def check_webhook_url(url: str, settings: SubmissionSettings, param: str) -> None:
    """Raises InvalidRequest naming `param` for a URL that can never be called."""
    with about(param):
        check_url(url, settings.webhook_allow_cidrs, settings.webhook_port_ranges)


def _encrypted(webhook_secret: str, vault: Vault) -> bytes:
    try:
        secret_key(webhook_secret)
    except InvalidSecret as error:
        raise InvalidRequest(f"Invalid 'webhook.secret': {error}", param="webhook.secret") from error
    return vault.encrypt(webhook_secret)


def _checked_file(file: File | None, new: NewJob, file_id: str) -> File:
    """Raises InvalidRequest for one that does not exist, or is for something else."""
    param = _input_param(new.face)
    if file is None:
        raise InvalidRequest(f"No such File object: {file_id}", param=param, code="file_not_found")
    if new.face is Face.OPENAI and file.purpose is not FilePurpose.BATCH:
        raise InvalidRequest(
            f"Invalid '{param}': the file's purpose is '{file.purpose}', not 'batch'.", param=param
        )
    return file


def _input_param(face: Face) -> str:
    """This face's name for a bulk job's input."""
    return "input_file_id" if face is Face.OPENAI else "input"


def _model_of(template: JsonObject | None) -> str | None:
    """The model that a template names; None if the rows name it."""
    model = template.get("model") if template else None
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(
            "Invalid 'template.model': a model's id is text.", param="template.model", code="invalid_type"
        )
    return model
