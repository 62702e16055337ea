"""The input of a response, as messages for a chat template.

    message                 a message; its parts are text
    function_call           a call in the assistant's message before it, or in one of its own
    function_call_output    a message of the tool

Items are read one by one, so that an error names its place and costs nothing more.
"""

from collections.abc import Mapping
from typing import Any, Final

from nightshift.endpoints.requests import (
    MESSAGES_MAX,
    PARTS_MAX,
    array_above,
    invalid_type,
    invalid_value,
    missing,
    unsupported,
)
from nightshift.endpoints.structured.tools import CALLS_MAX, NAME, arguments_of, called
from nightshift.endpoints.texts.generation import template_role
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

ROLES: Final = ("user", "assistant", "system", "developer")
NAMED_CHARS_MAX: Final = 64  # of a type in a message

# The field of each kind of part that has its text.
_TEXTS: Final[Mapping[str, str]] = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def messages_of(given: object, instructions: str | None) -> list[JsonObject]:
    """Raises InvalidRequest naming the first wrong part."""
    items = _Items()
    if instructions is not None:
        items.messages.append({"role": "system", "content": instructions})
    if given is None:
        raise missing("input")
    if isinstance(given, str):
        items.messages.append({"role": "user", "content": given})
        return items.messages
    if not isinstance(given, list):
        raise invalid_type("input", "a string or an array", given)
    if not given:
        raise invalid_value("input", "must have at least one item")
    if len(given) > MESSAGES_MAX:
        raise array_above("input", MESSAGES_MAX, given)
    for index, item in enumerate(given):
        items.add(item, f"input[{index}]")
    return items.messages


class _Items:
    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self._names: dict[str, str] = {}  # of called functions, by the call's id

    def add(self, item: Any, at: str) -> None:
        if not isinstance(item, dict):
            raise invalid_type(at, "an object", item)
        kind = item.get("type")
        if kind == "message" or (kind is None and "role" in item):
            self._add_message(item, at)
        elif kind == "function_call":
            self._add_call(item, at)
        elif kind == "function_call_output":
            self._add_output(item, at)
        elif kind is None:
            raise missing(f"{at}.type")
        else:
            raise _unknown(kind, f"{at}.type", "an item", "message, function_call or function_call_output")

    def _add_message(self, item: JsonObject, at: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise invalid_value(f"{at}.role", f"must be one of {', '.join(ROLES)}")
        content = _text(item.get("content"), f"{at}.content")
        self.messages.append({"role": template_role(role), "content": content})

    def _add_call(self, item: JsonObject, at: str) -> None:
        id, name, arguments = (_string(item, field, at) for field in ("call_id", "name", "arguments"))
        if not NAME.fullmatch(name):
            raise invalid_value(f"{at}.name", "must be 1 to 64 letters, digits, '_' or '-'")
        try:
            call = called(id, name, arguments_of(arguments))
        except ValueError as error:
            raise invalid_value(f"{at}.arguments", str(error)) from error
        self._names[id] = name
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        calls = self.messages[-1].setdefault("tool_calls", [])
        if len(calls) == CALLS_MAX:
            raise invalid_value(at, f"at most {CALLS_MAX} calls in a row")
        calls.append(call)

    def _add_output(self, item: JsonObject, at: str) -> None:
        id = _string(item, "call_id", at)
        if id not in self._names:
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {id}.",
                param=f"{at}.call_id",
                code="invalid_value",
            )
        content = _text(item.get("output"), f"{at}.output")
        result = {"role": "tool", "content": content, "tool_call_id": id, "name": self._names[id]}
        self.messages.append(result)


def _string(item: JsonObject, field: str, at: str) -> str:
    value = item.get(field)
    if value is None:
        raise missing(f"{at}.{field}")
    if not isinstance(value, str):
        raise invalid_type(f"{at}.{field}", "a string", value)
    return value


def _text(value: Any, at: str) -> str:
    """Of a string, or of a list of parts."""
    if isinstance(value, str):
        return value
    if value is None:
        raise missing(at)
    if not isinstance(value, list):
        raise invalid_type(at, "a string or an array", value)
    if len(value) > PARTS_MAX:
        raise array_above(at, PARTS_MAX, value)
    return "".join([_part_text(part, f"{at}[{index}]") for index, part in enumerate(value)])


def _part_text(part: Any, at: str) -> str:
    if not isinstance(part, dict):
        raise invalid_type(at, "an object", part)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise _unknown(kind, f"{at}.type", "content", "input_text or output_text")
    return _string(part, _TEXTS[kind], at)


def _unknown(kind: object, at: str, what: str, known: str) -> InvalidRequest:
    if not isinstance(kind, str):
        return invalid_type(at, "a string", kind)
    said = f"{what} of type {kind[:NAMED_CHARS_MAX]!r} is not supported; use {known}"
    return InvalidRequest(f"Invalid '{at}': {said}.", param=at, code=unsupported(at).code)
