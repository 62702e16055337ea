"""The bodies of `POST /v1/jobs` and `POST /v1/batches`.

Checks shapes only. Unknown fields are errors in our bodies and ignored in OpenAI's, as there.
"""

from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from nightshift import endpoints
from nightshift.endpoints.requests import Metadata, at_most, invalid_request, null_means
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.part_options import (
    KEEP_ALL,
    KEPT_COLUMNS_MAX,
    KEPT_NAMES_CHARS_MAX,
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    PartOptions,
)
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.sources import is_file_id
from nightshift.outbound.webhook_events import EVENT_TYPES

FIELDS_MAX: Final = 64  # of a body whose unknown fields are errors
URI_CHARS_MAX: Final = 2048
COLUMN_CHARS_MAX: Final = 255
LIMIT_MAX: Final = 2**53 - 1  # JSON's numbers are exact so far
BULK_FIELDS: Final = (
    "output",
    "template",
    "id_column",
    "name",
    "date",
    "max_error_rate",
    "max_failed_rows",
    "max_tokens_total",
    "row_timeout",
    "part_bytes",
    "part_rows",
    "keep_body",
    "embedding_dtype",
    "keep_columns",
    "reuse",
    "reuse_sampled",
)

Uri = Annotated[str, Field(min_length=1, max_length=URI_CHARS_MAX)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Reuse = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.:_+-]{0,63}$")]  # latest, a date or a job
RunDate = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.:_+-]{0,39}$")]


class OwnBody(BaseModel):
    """An object of our own, whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _few_fields(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, dict) and len(data) > FIELDS_MAX:
            raise ValueError(f"at most {FIELDS_MAX} fields, got {len(data)}")
        return handler(data)


class WebhookBody(OwnBody):
    """Where to send a job's events. Without a secret the tenant's own signs."""

    url: Uri
    events: Annotated[list[str], at_most(FIELDS_MAX)] = []
    secret: str | None = None

    @field_validator("events")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        unknown = sorted(set(value) - EVENT_TYPES.keys())
        if unknown:
            raise ValueError(f"unknown event {unknown[0]!r}; known are {', '.join(sorted(EVENT_TYPES))}")
        return value


class Options(OwnBody):
    """Options of any bulk job, under the same names on both faces."""

    priority: PriorityClass | None = None
    webhook: WebhookBody | None = None
    max_error_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    max_failed_rows: Annotated[int, Field(ge=0, le=LIMIT_MAX, strict=True)] | None = None
    max_tokens_total: Annotated[int, Field(ge=1, le=LIMIT_MAX, strict=True)] | None = None
    row_timeout: str | None = None
    max_runtime: str | None = None
    retry_on_interrupt: Annotated[bool, null_means(True)] = True
    capacity: Annotated[Literal["spot", "on_demand", "any"], null_means("any")] = "any"


class PartFields(OwnBody):
    """`PartOptions`. What is absent has the default there."""

    part_bytes: Annotated[int, Field(ge=PART_BYTES_MIN, le=PART_BYTES_MAX, strict=True)] | None = None
    part_rows: Annotated[int, Field(ge=1, le=LIMIT_MAX, strict=True)] | None = None
    keep_body: bool | None = None
    embedding_dtype: Literal["float32", "float16"] | None = None
    keep_columns: tuple[str, ...] | Literal["all"] | None = None

    @field_validator("keep_columns", mode="before")
    @classmethod
    def _names_columns(cls, value: object) -> object:
        if value is None or value == KEEP_ALL:
            return value
        if not isinstance(value, list) or not 0 < len(value) <= KEPT_COLUMNS_MAX:
            message = f"Give 'all', or a list of 1 to {KEPT_COLUMNS_MAX} names of columns."
            raise _wrong("keep_columns", f"Invalid 'keep_columns': {message}")
        for number, name in enumerate(value):
            if not is_column_name(name):
                message = (
                    f"a column's name is a text of 1 to {COLUMN_CHARS_MAX} characters of Unicode, not NUL."
                )
                raise _wrong(f"keep_columns[{number}]", f"Invalid 'keep_columns[{number}]': {message}")
        if sum(map(len, value)) > KEPT_NAMES_CHARS_MAX:
            message = f"its names have more than {KEPT_NAMES_CHARS_MAX} characters together."
            raise _wrong("keep_columns", f"Invalid 'keep_columns': {message}")
        if twice := [name for name, count in Counter(value).items() if count > 1]:
            raise _wrong("keep_columns", f"Invalid 'keep_columns': {twice[0]!r} is named twice.")
        return value

    @property
    def parts(self) -> PartOptions:
        asked = {name: getattr(self, name) for name in PartFields.model_fields}
        return PartOptions(**{name: value for name, value in asked.items() if value is not None})


class JobCreate(Options, PartFields):
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
    reuse: Reuse | None = None
    reuse_sampled: bool | None = None

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


def is_column_name(value: object) -> bool:
    """Half a character (a lone surrogate) names no column of any format."""
    if not isinstance(value, str) or not 0 < len(value) <= COLUMN_CHARS_MAX or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _wrong(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)
