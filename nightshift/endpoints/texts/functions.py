"""Functions of chats in OpenAI's old form, `functions` and `function_call`, as today's tools."""

import re
from dataclasses import replace
from typing import Any, Final

from nightshift.endpoints.requests import invalid_value
from nightshift.endpoints.structured.tools import Tools, tools_of
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

OLD_FIELDS: Final = ("functions", "function_call")
_TOOL: Final = re.compile(r"tools(\[\d+\])\.function")


def functions_of(data: JsonObject) -> Tools | None:
    """The tools that a body offers in the old form. An answer has one call at most. Raises InvalidRequest."""
    functions, choice = (data.get(field) for field in OLD_FIELDS)
    if not functions:
        if choice is not None:
            raise invalid_value("function_call", "it is only allowed when 'functions' are specified")
        return None
    if data.get("tools"):
        raise invalid_value("functions", "'tools' are their new form: give one of them")
    if data.get("tool_choice") is not None:
        raise invalid_value(
            "tool_choice", "it is only allowed when 'tools' are specified; set 'function_call'"
        )
    if not isinstance(functions, list):
        raise invalid_value("functions", "must be a list of functions")
    try:
        called = tools_of(
            {"tools": _tools(functions), "tool_choice": _choice(choice), "parallel_tool_calls": False}
        )
        return called and replace(called, choice_field=OLD_FIELDS[1])
    except InvalidRequest as error:
        message = _in_old_words(error.message)
        raise InvalidRequest(message, param=_in_old_words(error.param or ""), code=error.code) from error


def call_message(data: JsonObject) -> JsonObject:
    """A message of the old form in the new one. A result names its function, whose call was the last.

    Raises ValueError.
    """
    if data.get("role") == "function":
        return data | {"role": "tool", "tool_call_id": _call_id(data.get("name"))}
    call = data.get("function_call")
    if not call:
        return data
    name, arguments = (call.get(part) if isinstance(call, dict) else None for part in ("name", "arguments"))
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ValueError("'function_call' must have a 'name' and its 'arguments' as text")
    message = {field: value for field, value in data.items() if field not in OLD_FIELDS}
    return message | {"tool_calls": [{"id": _call_id(name), "type": "function", "function": call}]}


def in_new_form(body: JsonObject) -> JsonObject:
    """A chat's body, which was checked, with tools in place of functions."""
    functions, choice = (body.get(field) for field in OLD_FIELDS)
    new = {name: value for name, value in body.items() if name not in OLD_FIELDS}
    new["messages"] = [*map(call_message, body["messages"])]
    if functions:
        new |= {"tools": _tools(functions), "parallel_tool_calls": False}
    return new if choice is None else new | {"tool_choice": _choice(choice)}


def in_old_form(choice: JsonObject) -> JsonObject:
    """A choice of an answer with its call, if it has one, as `function_call`."""
    message: JsonObject = dict(choice["message"])
    calls = message.pop("tool_calls", ())
    if not calls:
        return choice
    reason = "function_call" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]
    return choice | {
        "message": message | {"function_call": calls[0]["function"]},
        "finish_reason": reason,
    }


def calls_in(message: JsonObject) -> list[JsonObject]:
    """The calls of an answer's message, in the new form; one of the old form has no id."""
    old = message.get("function_call")
    return [{"id": "", "type": "function", "function": old}] if old else message.get("tool_calls", [])


def _tools(functions: list[Any]) -> list[JsonObject]:
    return [{"type": "function", "function": function} for function in functions]


def _choice(given: Any) -> Any:
    """`function_call` as `tool_choice`."""
    return {"type": "function", "function": given} if isinstance(given, dict) else given


def _call_id(name: object) -> str:
    return f"call_{name}"


def _in_old_words(text: str) -> str:
    text = _TOOL.sub(r"functions\1", text).replace("tool_choice", "function_call")
    return re.sub(r"\btools\b", "functions", text)
