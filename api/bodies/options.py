"""The options of bulk jobs as fields of requests and answers, from their declarations in `BulkOptions`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, create_model

from api.bodies.column_names import check_columns
from api.bodies.own_body import OwnBody
from api.responses.times import parse_timeout, window_text
from nightshift.jobs import JsonObject
from nightshift.jobs.options import (
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


class OptionFields(OwnBody):
    """Options of bulk jobs in a request."""

    def options(self, earlier: BulkOptions = BulkOptions()) -> BulkOptions:
        """`earlier` with what was given; null means the default. Raises InvalidRequest."""
        given = (option for option in OPTIONS if option.name in self.model_fields_set)
        return replace(
            earlier, **{option.field: _accepted(option, getattr(self, option.name)) for option in given}
        )


def options_json(options: BulkOptions) -> JsonObject:
    """Every option, as answers show it."""
    return {option.name: _shown(option, getattr(options, option.field)) for option in OPTIONS}


def _accepted(option: Option, value: Any) -> Any:
    if value is None:
        return option.default
    if isinstance(option.about.kind, Duration):
        return parse_timeout(value, option.name, option.about.kind.at_most_s)
    return value


def _shown(option: Option, value: Any) -> Any:
    is_duration = isinstance(option.about.kind, Duration)
    return window_text(value) if is_duration and value is not None else value


def _asked_type(option: Option) -> Any:
    """What pydantic takes for it in a request. Null is the field's absence."""
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
    asked = {option.name: (_asked_type(option), None) for option in OPTIONS if is_wanted(option)}
    return create_model(name, __base__=OptionFields, **asked)  # type: ignore[call-overload,no-any-return]


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
