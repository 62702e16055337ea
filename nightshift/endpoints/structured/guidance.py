"""The form of an answer: OpenAI's `response_format`, fields of vLLM and SGLang."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nightshift.endpoints.requests import invalid_value, missing, unsupported
from nightshift.endpoints.structured.schemas import SCHEMA_BYTES_MAX, check_schema
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

REGEX_CHARS_MAX: Final = 4096
GRAMMAR_CHARS_MAX: Final = 16 * 1024
CHOICES_MAX: Final = 1024
SCHEMA_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANY_OBJECT: Final = '{"type":"object"}'

_LINE: Final = re.compile(r"\bat ([0-9]{1,6})\([0-9]+\)")

GuidanceKind = Literal["json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Guidance:
    """A language that the whole answer has to be in."""

    kind: GuidanceKind
    text: str  # a schema or a list of choices as JSON; a regular expression; Lark or GBNF
    field: str  # of the request, to be named in errors
    fields_of_lines: Sequence[tuple[int, str]] = ()
    """Lines of a text that is made from several fields, counted from 1, and their fields."""

    def field_at(self, error: str) -> str:
        """The field that an error of the compiler is about: it says the line."""
        line = _LINE.search(error)
        return self.field if line is None else dict(self.fields_of_lines).get(int(line[1]), self.field)


GuidanceFields = dict[str, Callable[[object, str], Guidance | None]]
"""Fields of requests, and how each is read: its value, and its name."""


def guidance_of(data: JsonObject, own: GuidanceFields) -> Guidance | None:
    """The form that the fields of a request, the endpoint's own ones too, ask for; None: any text.

    Raises InvalidRequest naming the place of the first error.
    """
    wanted = [
        guidance
        for name, read in (own | _FIELDS).items()
        if data.get(name) is not None and (guidance := read(data[name], name)) is not None
    ]
    if len(wanted) > 1:
        names = " and ".join(f"'{guidance.field}'" for guidance in wanted[:2])
        raise InvalidRequest(f"{names} cannot be used together.", param=wanted[1].field)
    return wanted[0] if wanted else None


def read_format(value: object, at: str, *, nested: str | None = None) -> Guidance | None:
    """One of OpenAI's formats. Raises InvalidRequest.

    `nested`: the field that has a schema and its name; None: they are beside the type.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise invalid_value(f"{at}.type", "must be one of text, json_object, json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return Guidance("json_schema", ANY_OBJECT, at)
    if nested is None:
        return _named_schema(value, at, at)
    given, place = value.get(nested), f"{at}.{nested}"
    if not isinstance(given, dict):
        raise missing(place)
    return _named_schema(given, place, at)


def _named_schema(given: JsonObject, at: str, field: str) -> Guidance:
    if not isinstance(given.get("name"), str) or not SCHEMA_NAME.fullmatch(given["name"]):
        raise invalid_value(f"{at}.name", "must be 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(given.get("strict"), bool | None):
        raise invalid_value(f"{at}.strict", "must be true or false")
    return _schema(given.get("schema", {}), f"{at}.schema", field)


def _guided_json(value: object, field: str) -> Guidance:
    return _schema(value, field, field)


def _guided_regex(value: object, field: str) -> Guidance:
    return Guidance("regex", _text(value, field, REGEX_CHARS_MAX), field)


def _guided_grammar(value: object, field: str) -> Guidance:
    return Guidance("grammar", _text(value, field, GRAMMAR_CHARS_MAX), field)


def _guided_choice(value: object, field: str) -> Guidance:
    if not isinstance(value, list) or not 0 < len(value) <= CHOICES_MAX:
        raise invalid_value(field, f"must be a list of 1 to {CHOICES_MAX} strings")
    for index, choice in enumerate(value):
        if not isinstance(choice, str) or not choice:
            raise invalid_value(f"{field}[{index}]", "must be a string that is not empty")
    text = json.dumps(value)
    if len(text) > SCHEMA_BYTES_MAX:
        raise invalid_value(
            field, f"choices of {len(text)} bytes are too large; the limit is {SCHEMA_BYTES_MAX}"
        )
    return Guidance("choice", text, field)


def _structured_outputs(value: object, field: str) -> Guidance | None:
    if not isinstance(value, dict):
        raise invalid_value(field, "must be an object")
    given = {name: part for name, part in value.items() if part is not None and part is not False}
    for name in given:
        if name not in _STRUCTURED:
            raise unsupported(f"{field}.{name}")
    if len(given) > 1:
        raise invalid_value(field, f"only one of {', '.join(_STRUCTURED)} can be asked for")
    for name, part in given.items():
        return _STRUCTURED[name](part, f"{field}.{name}")
    return None


def _json_object(value: object, field: str) -> Guidance:
    if value is not True:
        raise invalid_value(field, "must be true or false")
    return Guidance("json_schema", ANY_OBJECT, field)


def _schema(value: object, at: str, field: str) -> Guidance:
    if isinstance(value, str):
        if len(value) > SCHEMA_BYTES_MAX:
            raise invalid_value(at, f"a schema of {len(value)} characters is too large")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise invalid_value(at, f"is no JSON: {str(error).partition(';')[0]}") from error
    check_schema(value, at)
    return Guidance("json_schema", json.dumps(value), field)


def _text(value: object, field: str, chars_max: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= chars_max:
        raise invalid_value(field, f"must be a string of 1 to {chars_max} characters")
    return value


_FIELDS: Final[GuidanceFields] = {
    "guided_json": _guided_json,
    "guided_regex": _guided_regex,
    "guided_choice": _guided_choice,
    "guided_grammar": _guided_grammar,
    "structured_outputs": _structured_outputs,
    "json_schema": _guided_json,  # these three are SGLang's names
    "regex": _guided_regex,
    "ebnf": _guided_grammar,
}

_STRUCTURED: Final[Mapping[str, Callable[[Any, str], Guidance]]] = {
    "json": _guided_json,
    "regex": _guided_regex,
    "choice": _guided_choice,
    "grammar": _guided_grammar,
    "json_object": _json_object,
}
