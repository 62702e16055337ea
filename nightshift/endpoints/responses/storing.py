"""Stored responses: what a request says of it, its place in a conversation, and its input as items.

A stored response is an online job: `resp_abc` is the job `job_abc`. Its request is kept with the whole
conversation, so that one response is enough to go on from, whatever becomes of those before it.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from nightshift.endpoints.answers import answer_id
from nightshift.endpoints.requests import invalid_type, invalid_value, missing
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.ids import SUFFIX_LENGTH, is_id

PREFIX: Final = "resp_"
FIELDS: Final = ("background", "store", "previous_response_id")
_JOB: Final = "job_"
_PLACE: Final = re.compile(r"\binput\[(\d+)\]")


def response_id(name: str) -> str:
    """The id of the response of an online job, or of the row with this name."""
    is_job = name.startswith(_JOB) and len(name) == len(_JOB) + SUFFIX_LENGTH
    return PREFIX + name.removeprefix(_JOB) if is_job else answer_id(PREFIX, name)


def job_id_of(response_id: str) -> str | None:
    """The job of a response; None if the text is no id of one."""
    if not response_id.startswith(PREFIX) or not is_id(response_id):
        return None
    return _JOB + response_id.removeprefix(PREFIX)


@dataclass(frozen=True, slots=True)
class Storing:
    """The way the response to a request is made and kept."""

    background: bool
    store: bool
    previous_response_id: str | None

    @classmethod
    def read(cls, body: JsonObject) -> "Storing":
        """Reads what a body says; as at OpenAI, a response is stored by default. Raises InvalidRequest."""
        background, store = (_flag(body, field) for field in FIELDS[:2])
        previous = body.get("previous_response_id")
        if not isinstance(previous, str | None):
            raise invalid_type("previous_response_id", "a string", previous)
        if background and store is False:
            raise invalid_value("background", "background can only be used when `store` is true")
        return cls(bool(background), store is not False, previous)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Storing":
        return cls(**data)

    def to_json(self) -> JsonObject:
        """The fields of an answer that say it."""
        return asdict(self)


def without_storing(body: JsonObject) -> JsonObject:
    """The request as a model's, for which it makes no difference."""
    return {name: value for name, value in body.items() if name not in FIELDS}


def continued(body: JsonObject, previous: JsonObject, output: list[JsonObject]) -> JsonObject:
    """The request with the conversation before it: that of the request `previous`, and the answer to it.

    Raises InvalidRequest.
    """
    if body.get("input") is None:
        raise missing("input")
    return body | {"input": [*items_of(previous["input"]), *output, *items_of(body.get("input"))]}


def input_items(response_id: str, given: Any) -> list[JsonObject]:
    """A request's input as items, in its order. Each has an id of its own: a list goes on behind one."""
    shown: dict[str, JsonObject] = {}
    for n, item in enumerate(items_of(given)):
        id = item.get("id")
        if not isinstance(id, str) or id in shown:
            id = answer_id("msg_", f"{response_id}/{n}")
        shown[id] = _shown(item, id)
    return [*shown.values()]


def items_of(given: Any) -> list[Any]:
    """The items of an input. What is none is left to the check of the request."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given if isinstance(given, list) else [given]


def about_own(error: InvalidRequest, num_before: int) -> InvalidRequest:
    """An error about a request's input, by the places that its items have without those before them."""

    def moved(match: re.Match[str]) -> str:
        return f"input[{max(0, int(match[1]) - num_before)}]"

    param, message = (_PLACE.sub(moved, text) for text in (error.param or "", error.message))
    return InvalidRequest(message, param=param or None, code=error.code)


def _shown(item: JsonObject, id: str) -> JsonObject:
    """An item as OpenAI shows it: its text in parts, with an id and a status."""
    item = {name: value for name, value in item.items() if value is not None}
    if item.get("type", "message") != "message":
        return {"status": "completed"} | item | {"id": id}
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"type": "message", "status": "completed"} | item | {"id": id, "content": content}


def _flag(body: JsonObject, field: str) -> bool | None:
    value = body.get(field)
    if not isinstance(value, bool | None):
        raise invalid_type(field, "a boolean", value)
    return value


def not_found(response_id: str) -> InvalidRequest:
    """The refusal of a request that goes on from a response that is not there, in OpenAI's words."""
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
