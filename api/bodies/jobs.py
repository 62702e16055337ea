"""The bodies of `POST /v1/jobs` and `POST /v1/batches`.

Checks shapes only. Unknown fields are errors in our bodies and ignored in OpenAI's, as there.
"""

from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from api.bodies.column_names import COLUMN_CHARS_MAX
from api.bodies.options import BatchOptionFields, NativeOptionFields
from api.bodies.own_body import FIELDS_MAX, OwnBody
from nightshift import endpoints
from nightshift.endpoints.requests import Metadata, at_most, invalid_request, null_means
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.options import OPTIONS
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.sources import is_file_id
from nightshift.outbound.webhook_events import EVENT_TYPES

URI_CHARS_MAX: Final = 2048
BULK_FIELDS: Final = (
    "output",
    "template",
    "id_column",
    "name",
    "date",
    *(option.name for option in OPTIONS),
)

Uri = Annotated[str, Field(min_length=1, max_length=URI_CHARS_MAX)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
RunDate = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.:_+-]{0,39}$")]


class WebhookBody(OwnBody):
    """Where to send a job's events. Without a secret the tenant's own signs."""

    url: Uri
    events: Annotated[list[str], at_most(FIELDS_MAX)] = Field([])
    secret: str | None = None

    @field_validator("events")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        unknown = sorted(set(value) - EVENT_TYPES.keys())
        if unknown:
            raise ValueError(f"unknown event {unknown[0]!r}; known are {', '.join(sorted(EVENT_TYPES))}")
        return value


class Options(BatchOptionFields, OwnBody):
    """Options of any bulk job, under the same names on both faces."""

    priority: PriorityClass | None = None
    webhook: WebhookBody | None = None
    max_runtime: str | None = None
    retry_on_interrupt: Annotated[bool, null_means(True)] = True
    capacity: Annotated[Literal["spot", "on_demand", "any"], null_means("any")] = "any"


class JobCreate(Options, NativeOptionFields):
    """POST /v1/jobs: one request (`body`) or many (`input`)."""

    endpoint: str
    body: JsonObject | None = None
    input: Uri | None = None
    output: Uri | None = None
    template: JsonObject | None = None
    id_column: Annotated[str, Field(min_length=1, max_length=COLUMN_CHARS_MAX)] | None = None
    format: Annotated[Literal["jsonl", "parquet"], null_means("jsonl")] = "jsonl"
    completion_window: str = "24h"
    metadata: Metadata | None = None
    name: Name | None = None
    date: RunDate | None = None

    @model_validator(mode="after")
    def _one_or_many(self) -> "JobCreate":
        if (self.body is None) == (self.input is None):
            raise _wrong("body", "Give either 'body', for one request, or 'input', for many.")
        if self.body is not None:
            self._refuse_bulk_fields()
        elif self.output is None:
            raise InvalidRequest(
                "Missing required parameter: 'output'.", param="output", code="missing_required_parameter"
            )
        if (self.name is None) != (self.date is None):
            raise _wrong("date" if self.date is None else "name", "'name' and 'date' belong together.")
        return self

    @property
    def endpoint_asked(self) -> endpoints.Endpoint:
        """Raises InvalidRequest."""
        return _endpoint(self.endpoint)

    def _refuse_bulk_fields(self) -> None:
        for field in BULK_FIELDS:
            if getattr(self, field) is not None:
                raise _wrong(field, f"'{field}' is for bulk jobs; this one has a 'body'.")


class JobRetry(Options):
    """POST /v1/jobs/{job_id}/retry. What is absent is as the earlier job has it."""

    output: Uri | None = None
    completion_window: str | None = None
    metadata: Metadata | None = None


class JobUpdate(OwnBody):
    """PATCH /v1/jobs/{job_id}. What is absent stays; `metadata` is replaced whole, and taken away by null."""

    priority: PriorityClass | None = None
    metadata: Metadata | None = None


class BatchOptions(Options):
    """Extensions of a batch."""

    # The output always is in the input's order; without this, that is no promise.
    output_order: Literal["input"] | None = None


class OutputExpiry(BaseModel):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchCreate(BaseModel):
    """POST /v1/batches."""

    model_config = ConfigDict(extra="ignore")

    input_file_id: Uri
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None

    @field_validator("input_file_id")
    @classmethod
    def _names_a_file(cls, value: str) -> str:
        """A file of this service, or, as an extension, a location."""
        if not is_file_id(value) and "://" not in value:
            raise InvalidRequest(
                f"Invalid 'input_file_id': {value!r}. Expected an ID that begins with 'file-'.",
                param="input_file_id",
                code="invalid_value",
            )
        return value

    nightshift: Annotated[BatchOptions, null_means(BatchOptions())] = BatchOptions()

    @property
    def endpoint_asked(self) -> endpoints.Endpoint:
        """Raises InvalidRequest."""
        return _endpoint(self.endpoint)


def parse_job(body: JsonObject) -> JobCreate:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return JobCreate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def parse_job_retry(body: JsonObject) -> JobRetry:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return JobRetry.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def parse_job_update(body: JsonObject) -> JobUpdate:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return JobUpdate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def parse_batch(body: JsonObject) -> BatchCreate:
    """Raises InvalidRequest naming the first field that is wrong."""
    try:
        return BatchCreate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def _endpoint(name: str) -> endpoints.Endpoint:
    try:
        return endpoints.named(name)
    except ValueError as error:
        raise InvalidRequest(f"Invalid 'endpoint': {error}.", param="endpoint") from error


def _wrong(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)
