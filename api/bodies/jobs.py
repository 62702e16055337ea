"""The bodies of `POST /v1/jobs` and `POST /v1/batches`, with the options of bulk jobs.

Checks shapes only. Unknown fields are errors in our bodies and ignored in OpenAI's, as there.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, create_model, field_validator, model_validator

from api.bodies import FIELDS_MAX, OpenAiBody, OwnBody
from api.responses.times import window_text
from nightshift import endpoints
from nightshift.endpoints.requests import Metadata, at_most, null_means
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.job import INPUTS_MAX
from nightshift.jobs.options import (
    KEEP_ALL,
    KEPT_COLUMNS_MAX,
    KEPT_NAMES_CHARS_MAX,
    OPTIONS,
    BulkOptions,
    Choice,
    ColumnNames,
    Count,
    Duration,
    Option,
    Share,
    Switch,
    Text,
)
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.sources import is_file_id
from nightshift.outbound.webhook_events import EVENT_TYPES

URI_CHARS_MAX: Final = 2048
COLUMN_CHARS_MAX: Final = 255
WINDOW_CHARS_MAX: Final = 100
WINDOW_UNITS: Final = "mhd"
TIMEOUT_UNITS: Final = "smh"
PRICE_MAX: Final = 1_000_000.0  # so that no cost is more than a number can be

_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXAMPLES: Final = {WINDOW_UNITS: "90m, 8h or 7d", TIMEOUT_UNITS: "30s, 5m or 1h"}

Uri = Annotated[str, Field(min_length=1, max_length=URI_CHARS_MAX)]
Hours = Annotated[str, Field(max_length=WINDOW_CHARS_MAX)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
RunDate = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.:_+-]{0,39}$")]


def parse_duration(text: str, param: str, max_s: int, units: str = WINDOW_UNITS) -> int:
    """The seconds in `90m`, `8h` or `7d`. Raises InvalidRequest naming `param`."""
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in units:
        raise _wrong(param, f"Invalid '{param}': {text!r} is not a duration such as {_EXAMPLES[units]}.")
    duration_s = int(match[1]) * _UNIT_S[match[2]]
    if duration_s > max_s:
        raise _wrong(
            param, f"Invalid '{param}': {text!r} is longer than the {window_text(max_s)} this service allows."
        )
    return duration_s


# -- options, from their declarations in `BulkOptions` --


class OptionFields(OwnBody):
    """Options of bulk jobs in a request."""

    def options(self, earlier: BulkOptions = BulkOptions()) -> BulkOptions:
        """`earlier` with the options that were given; null means the default. Raises InvalidRequest."""
        given = {}
        for option in OPTIONS:
            if option.name in self.model_fields_set:
                value, kind = getattr(self, option.name), option.about.kind
                if value is None:
                    value = option.default
                elif isinstance(kind, Duration):
                    value = parse_duration(value, option.name, kind.at_most_s, TIMEOUT_UNITS)
                given[option.field] = value
        return replace(earlier, **given)


def options_json(options: BulkOptions) -> JsonObject:
    """Every option, as answers show it."""
    return {option.name: _shown(option, getattr(options, option.field)) for option in OPTIONS}


def _shown(option: Option, value: Any) -> Any:
    is_duration = isinstance(option.about.kind, Duration)
    return window_text(value) if is_duration and value is not None else value


def check_columns(param: str, value: object) -> object:
    """`all`, a list of columns, or None, as it is. Raises InvalidRequest naming `param` or an entry of it."""
    if value is None or value == KEEP_ALL:
        return value
    if not isinstance(value, list) or not 0 < len(value) <= KEPT_COLUMNS_MAX:
        raise _invalid(param, f"Give 'all', or a list of 1 to {KEPT_COLUMNS_MAX} names of columns.")
    for number, name in enumerate(value):
        if not _is_column_name(name):
            message = f"a column's name is a text of 1 to {COLUMN_CHARS_MAX} characters of Unicode, not NUL."
            raise _invalid(f"{param}[{number}]", message)
    if sum(map(len, value)) > KEPT_NAMES_CHARS_MAX:
        raise _invalid(param, f"its names have more than {KEPT_NAMES_CHARS_MAX} characters together.")
    if twice := [name for name, count in Counter(value).items() if count > 1]:
        raise _invalid(param, f"{twice[0]!r} is named twice.")
    return value


def _is_column_name(value: object) -> bool:
    """Half a character (a lone surrogate) names no column of any format."""
    if not isinstance(value, str) or not 0 < len(value) <= COLUMN_CHARS_MAX or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _requested_type(option: Option) -> Any:
    """The type of an option in a request for pydantic. Null is the field's absence."""
    match option.about.kind:
        case Share():
            return Annotated[float, Field(ge=0, le=1)] | None
        case Count(at_least, at_most):
            return Annotated[int, Field(ge=at_least, le=at_most, strict=True)] | None
        case Duration():
            return str | None
        case Switch():
            return bool | None
        case Choice() as choice:
            return choice.type | None
        case Text(pattern):
            return Annotated[str, Field(pattern=pattern)] | None
        case ColumnNames():
            return Annotated[option.type, BeforeValidator(partial(check_columns, option.name))]


def _shown_type(option: Option) -> Any:
    return str | None if isinstance(option.about.kind, Duration) else option.type


def _requested(name: str, is_wanted: Callable[[Option], bool]) -> type[OptionFields]:
    fields = {option.name: (_requested_type(option), None) for option in OPTIONS if is_wanted(option)}
    return create_model(name, __base__=OptionFields, **fields)  # type: ignore[call-overload,no-any-return]


if TYPE_CHECKING:  # which fields they have is known when the module is loaded
    BatchOptionFields = OptionFields
    NativeOptionFields = OptionFields
    ShownOptions = BaseModel
else:
    BatchOptionFields = _requested("BatchOptionFields", lambda option: option.about.of_batches)
    NativeOptionFields = _requested("NativeOptionFields", lambda option: not option.about.of_batches)
    ShownOptions = create_model(
        "ShownOptions", **{option.name: (_shown_type(option), ...) for option in OPTIONS}
    )


# -- jobs --


def check_inputs(value: object) -> object:
    """A location, a list of some, or None, as it is. Raises InvalidRequest naming what is wrong."""
    if value is None:
        return None
    if not isinstance(value, list):
        _check_uri(value, "input")
        return value
    if not 0 < len(value) <= INPUTS_MAX:
        message = f"a list has 1 to {INPUTS_MAX} objects, but got {len(value)}. Name a folder, or a pattern."
        raise _invalid("input", message)
    for number, uri in enumerate(value):
        _check_uri(uri, f"input[{number}]")
    return value


def _check_uri(value: object, param: str) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= URI_CHARS_MAX:
        raise _invalid(param, f"a location is a text of 1 to {URI_CHARS_MAX} characters.")


BULK_FIELDS: Final = (
    "output",
    "template",
    "id_column",
    "window",
    "name",
    "date",
    *(option.name for option in OPTIONS),
)


class WebhookBody(OwnBody):
    """The address to send a job's events to. Without a secret the tenant's own signs."""

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


def _is_upload(input: str | list[str] | None) -> bool:
    return isinstance(input, str) and is_file_id(input)


class JobCreate(Options, NativeOptionFields):
    """POST /v1/jobs: one request (`body`) or many (`input`)."""

    needs_output: ClassVar[bool] = True

    endpoint: str
    body: JsonObject | None = None
    input: Annotated[Uri | list[Uri] | None, BeforeValidator(check_inputs)] = None
    output: Uri | None = None
    template: JsonObject | None = None
    id_column: Annotated[str, Field(min_length=1, max_length=COLUMN_CHARS_MAX)] | None = None
    format: Annotated[Literal["jsonl", "parquet"], null_means("jsonl")] = "jsonl"
    completion_window: str | None = None
    window: Hours | None = None
    metadata: Metadata | None = None
    name: Name | None = None
    date: RunDate | None = None

    @model_validator(mode="after")
    def _one_or_many(self) -> "JobCreate":
        if (self.body is None) == (self.input is None):
            raise _wrong("body", "Give either 'body', for one request, or 'input', for many.")
        if self.body is not None:
            self._refuse_bulk_fields()
        elif self.output is None and self.needs_output and not _is_upload(self.input):
            raise InvalidRequest(
                "Missing required parameter: 'output'.", param="output", code="missing_required_parameter"
            )
        if (self.name is None) != (self.date is None):
            raise _wrong("date" if self.date is None else "name", "'name' and 'date' belong together.")
        return self

    def _refuse_bulk_fields(self) -> None:
        for field in BULK_FIELDS:
            if getattr(self, field) is not None:
                raise _wrong(field, f"'{field}' is for bulk jobs; this one has a 'body'.")


Price = Annotated[float, Field(gt=0, le=PRICE_MAX, strict=True)]


class EstimateCreate(JobCreate):
    """POST /v1/jobs/estimate: a bulk job, of which `output` may be left out, and prices of a GPU's hour."""

    needs_output: ClassVar[bool] = False

    gpu_hour_price: Price | None = None
    spot_price: Price | None = None

    @field_validator("body")
    @classmethod
    def _is_bulk(cls, value: JsonObject | None) -> JsonObject | None:
        if value is not None:
            raise _wrong("body", "Invalid 'body': an estimate is of a bulk job; give its 'input'.")
        return value


class JobRetry(Options):
    """POST /v1/jobs/{job_id}/retry. What is absent is as the earlier job has it."""

    output: Uri | None = None
    completion_window: str | None = None
    window: Hours | None = None
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


class BatchCreate(OpenAiBody):
    """POST /v1/batches."""

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


def endpoint_named(name: str) -> endpoints.Endpoint:
    """Raises InvalidRequest."""
    try:
        return endpoints.named(name)
    except ValueError as error:
        raise _wrong("endpoint", f"Invalid 'endpoint': {error}.") from error


def _invalid(param: str, message: str) -> InvalidRequest:
    return _wrong(param, f"Invalid '{param}': {message}")


def _wrong(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)
