"""The fields of every model request, and their validation.

Names are OpenAI's, extensions vLLM's. Known but unsupported fields are refused, unknown ones ignored.
"""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from nightshift.endpoints.parameters import KNOWN, Flag, WithoutEffect
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import CLASS_OF_SERVICE_TIER, PriorityClass

Count = Annotated[int, Field(ge=1, strict=True)]
TokenId = Annotated[int, Field(ge=0, strict=True)]

TokensKept = Annotated[int, Field(ge=-1, strict=True)]
"""vLLM's `truncate_prompt_tokens`: longer texts are cut to so many; -1: to what the model takes."""


def at_most(entries: int) -> BeforeValidator:
    """Refuses longer lists and objects before their entries are looked at.

    pydantic keeps an error of half a kilobyte for every wrong entry, however short that is. `fail_fast` does
    the same for lists that may be long.
    """

    def check(value: object) -> object:
        if not isinstance(value, str) and isinstance(value, Sized) and len(value) > entries:
            raise ValueError(f"at most {entries} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


def array_at_most(entries: int, path: str) -> BeforeValidator:
    """A field's bound like `at_most`, in OpenAI's words, for a field that OpenAI bounds."""

    def check(value: object) -> object:
        if isinstance(value, list) and len(value) > entries:
            raise array_above(path, entries, value)
        return value

    return BeforeValidator(check)


def are_token_ids(values: list[Any]) -> bool:
    """Whether all are integers of at least 0. A million of them take some 20 ms."""
    return set(map(type, values)) == {int} and min(values) >= 0


def null_means(default: object) -> BeforeValidator:
    """Takes an explicit null as the field's absence, as OpenAI does."""
    return BeforeValidator(lambda value: default if value is None else value)


METADATA_PAIRS_MAX: Final = 16

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    at_most(METADATA_PAIRS_MAX),
]


MESSAGES_MAX: Final = 2048  # of a conversation, as at OpenAI
PARTS_MAX: Final = 2048  # of a message's content: more than anyone needs, and a bound of what they cost

LABEL: Final = WithoutEffect("a label for the caller's own records")
CACHED: Final = WithoutEffect("prefixes are reused without it")


class ModelRequest(BaseModel):
    """The fields that every request to a model has."""

    model_config = ConfigDict(extra="ignore", strict=False)

    model: Annotated[str, Field(min_length=1, max_length=255)]
    user: Annotated[str | None, LABEL] = None
    metadata: Annotated[Metadata | None, LABEL] = None
    safety_identifier: Annotated[str | None, LABEL] = None
    request_id: Annotated[str | None, LABEL] = None  # vLLM's
    prompt_cache_key: Annotated[str | None, CACHED] = None
    prompt_cache_retention: Annotated[str | None, CACHED] = None
    prompt_cache_options: Annotated[JsonObject | None, CACHED] = None
    spaces_between_special_tokens: Annotated[Flag, WithoutEffect("special tokens leave no text")] = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    priority: PriorityClass | None = None  # extension, as on our own routes

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values of parameters it does not have that ask for nothing here, where that differs from elsewhere."""

    other_names: ClassVar[Collection[str]] = ()
    """Names of its fields at other servers."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        for name, value in data.items() if isinstance(data, dict) else ():
            if value is None or name not in KNOWN or name in cls.model_fields or name in cls.other_names:
                continue
            if value not in cls.neutral.get(name, KNOWN[name]):
                raise unsupported(name)
        return data

    @field_validator("priority", mode="before")
    @classmethod
    def _priority(cls, value: object) -> object:
        """Accepts vLLM's numbers too: lower is sooner, 0 is the default."""
        if isinstance(value, int) and not isinstance(value, bool):
            return PriorityClass.INTERACTIVE if value <= 0 else PriorityClass.BACKGROUND
        return value

    @property
    def priority_class(self) -> PriorityClass:
        """An online request's class, interactive by default."""
        if self.priority is not None:
            return self.priority
        return CLASS_OF_SERVICE_TIER[self.service_tier or "auto"]

    def check_context(self, tokens_max: int) -> None:
        """Refuses token ids that are more than a model's context has, by their count.

        Raises InvalidRequest.
        """

    @property
    @abstractmethod
    def text_chars(self) -> int:
        """The length of its text in characters."""

    @property
    def num_choices(self) -> int:
        """The number of answers to its input."""
        return 1

    @property
    def streams(self) -> bool:
        return False


def invalid_value(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {what}.", param=path, code="invalid_value")


def array_above(path: str, entries_max: int, value: Sized) -> InvalidRequest:
    """OpenAI's sentence."""
    return InvalidRequest(
        f"Invalid '{path}': array too long. Expected an array with maximum length {entries_max}, but got "
        f"an array with length {len(value)} instead.",
        param=path,
        code="array_above_max_length",
    )


def invalid_type(path: str, expected: str, value: object) -> InvalidRequest:
    """OpenAI's sentence. `expected` has its article, such as "a string"."""
    message = f"Invalid type for '{path}': expected {expected}, but got {_kind_of(value)} instead."
    return InvalidRequest(message, param=path, code="invalid_type")


MAY_BE_CUT: Final = " With 'truncate_prompt_tokens': -1 its first tokens are taken."
"""Advice in the error for a text that is too long, where a request may have it cut."""


def too_long(limit: int, however: str, param: str, advice: str = "") -> InvalidRequest:
    """An error in OpenAI's words, by which clients know that a shorter text may be accepted."""
    return InvalidRequest(
        f"This model's maximum context length is {limit} tokens. However, {however}.{advice}",
        param=param,
        code="context_length_exceeded",
    )


def missing(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
    )


def unsupported(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{path}' is not supported by this endpoint.", param=path, code="unsupported_parameter"
    )


def invalid_request(error: ValidationError, known: Iterable[str] = ()) -> InvalidRequest:
    """The first error, with its field and what was expected. `known`: the fields that there are."""
    errors = error.errors(include_url=False, include_context=False)
    field = errors[0]["loc"][:1]
    # Of a union's branches, the one that matched deepest was meant.
    first = max((e for e in errors if e["loc"][:1] == field), key=lambda e: len(e["loc"]))
    param = _path(first["loc"])
    is_type = first["type"].endswith(("_type", "_parsing"))
    code = "invalid_type" if is_type else _CODES.get(first["type"], "invalid_value")
    message = first["msg"].removeprefix("Value error, ")
    if code == "missing_required_parameter":
        return missing(param)
    if code == "unknown_parameter":
        alike = get_close_matches(param, known, n=1)
        advice = f" Did you mean '{alike[0]}'?" if alike else ""
        return InvalidRequest(f"Unknown parameter: '{param}'.{advice}", param=param, code=code)
    if param and first["type"] in _EXPECTED:  # OpenAI's sentence
        return invalid_type(param, _EXPECTED[first["type"]], first["input"])
    return InvalidRequest(
        f"Invalid '{param}': {message}." if param else message, param=param or None, code=code
    )


_CODES: Final = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "less_than_equal": "above_max_value",
    "greater_than_equal": "below_min_value",
}

_EXPECTED: Final = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}


def _kind_of(value: object) -> str:
    """A JSON value's type, as OpenAI's sentences name it."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


# pydantic's names of union branches and of a wrong key in a location, which callers do not know.
_UNION_BRANCHES: Final = re.compile(r"str$|list\[|function-|constrained-|\[key\]$")


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_BRANCHES.match(part):
            path += f".{part}" if path else part
    return path
