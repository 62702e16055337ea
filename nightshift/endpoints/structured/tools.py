"""Tools: what a request offers, and the grammar that a call has to be in. Answers are read in `calls.py`.

A call is text in the form of the Hermes and Qwen families. A model of another family is held to it where it
must call:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nightshift.endpoints.containers import TOO_MANY, has_too_many_entries
from nightshift.endpoints.requests import invalid_value, missing
from nightshift.endpoints.structured.guidance import Guidance
from nightshift.endpoints.structured.schemas import SCHEMA_BYTES_MAX, check_schema, size_of
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

TOOLS_MAX: Final = 128
CALLS_MAX: Final = 128  # in one message
TOOLS_BYTES_MAX: Final = 4 * SCHEMA_BYTES_MAX
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
ANY_OBJECT: Final[JsonObject] = {"type": "object"}
NAMED_CHARS_MAX: Final = 64  # of an unknown function in a message
WHITESPACE: Final = r"[ \n\r\t]{1,32}"


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that an answer may call, or has to."""

    given: Sequence[JsonObject]  # as in the request, for the chat template
    callable: Sequence[str]  # names that this answer may call
    must_call: bool
    is_parallel: bool  # several calls in one answer
    form: Guidance | None = None  # of an answer without calls, a JSON schema; None: any text
    choice_field: str = "tool_choice"  # of the request; it says whether one is called

    @property
    def guidance(self) -> Guidance:
        """The grammar of an answer: in auto, text that may have calls, or calls or the form."""
        rules = [rule for n, (_, tool) in enumerate(self._called) for rule in _rules(n, tool["function"])]
        objects = " | ".join(f"object_{n}" for n in range(len(self._called)))
        rules.append(f'body: "\\n" ({objects}) "\\n{END}"')
        if self.must_call or self.form is not None:
            more = '("\\n" call)*' if self.is_parallel else ""
            rules += [f"calls: call {more}", f'call: "{BEGIN}" body']
            rules += ["start: calls"] if self.form is None else ["start: calls | form", _form(self.form)]
        else:
            start = "(before body)* TEXT" if self.is_parallel else "before body | TEXT"
            rules += [f"start: {start}", f"before[lazy]: /(.|\\n)*{BEGIN}/", "TEXT: /(.|\\n)*/"]
        return Guidance("grammar", "\n".join(rules), "tools", self._fields(len(rules)))

    def or_form(self, form: Guidance) -> "Tools":
        """The same tools for an answer that has this form where it does not call. Raises InvalidRequest."""
        if form.kind != "json_schema":
            raise InvalidRequest(
                f"'{form.field}' and 'tools' cannot be used together, except for JSON.", param=form.field
            )
        return self if self.must_call else replace(self, form=form)

    @property
    def _called(self) -> list[tuple[int, JsonObject]]:
        """The tools that may be called, with their places in the request."""
        return [(at, tool) for at, tool in enumerate(self.given) if tool["function"]["name"] in self.callable]

    def _fields(self, num_rules: int) -> list[tuple[int, str]]:
        """The grammar's lines that have a schema: every second one is a tool's, the last is the form's."""
        fields = [(2 * n + 2, f"tools[{at}]") for n, (at, _) in enumerate(self._called)]
        return fields if self.form is None else [*fields, (num_rules, self.form.field)]


def tools_of(data: JsonObject, *, is_flat: bool = False) -> Tools | None:
    """The tools that a request offers; None: none, or none that may be called. Raises InvalidRequest.

    A flat tool has the fields of its function beside its type, as in OpenAI's Responses.
    """
    given, choice, parallel = (data.get(name) for name in ("tools", "tool_choice", "parallel_tool_calls"))
    if not isinstance(parallel, bool | None):
        raise invalid_value("parallel_tool_calls", "must be true or false")
    if given is None or given == []:
        for name in ("tool_choice", "parallel_tool_calls"):
            if data.get(name) is not None:
                raise invalid_value(name, f"'{name}' is only allowed when 'tools' are specified")
        return None
    names = _check_tools(given, is_flat)
    if choice == "none":
        return None
    chosen = _chosen(choice, names, is_flat)
    shown = [_nested(tool) for tool in given] if is_flat else given
    return Tools(shown, chosen.names, chosen.must_call, parallel is not False and not chosen.is_one)


def arguments_of(text: str) -> JsonObject | str:
    """The arguments of a call in an earlier answer. Those of a call that was cut off are no object, and stay
    text. Raises ValueError for those with too many entries.
    """
    if has_too_many_entries(text.encode(errors="replace")):
        raise ValueError(f"arguments may not have {TOO_MANY}")
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def called(id: str, name: str, arguments: JsonObject | str) -> JsonObject:
    """A call of an earlier answer for chat templates: they write the arguments themselves."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _rules(number: int, function: JsonObject) -> tuple[str, str]:
    beginning = json.dumps(f'{{"name": "{function["name"]}", "arguments": ')
    arguments = _json_in(_arguments_schema(function), is_lenient=not function.get("strict"))
    return f'object_{number}: {beginning} arguments_{number} "}}"', f"arguments_{number}: {arguments}"


def _form(form: Guidance) -> str:
    return f"form: {_json_in(json.loads(form.text))}"


def _json_in(schema: JsonObject, *, is_lenient: bool = False) -> str:
    """Writes a schema in llguidance's notation, which leaves unknown keywords of a lenient one out. A worker
    takes any object for a lenient one that it cannot compile.
    """
    options = {"whitespace_pattern": WHITESPACE} | ({"lenient": True} if is_lenient else {})
    return f"%json {json.dumps(schema | {'x-guidance': options})}"


def _arguments_schema(function: JsonObject) -> JsonObject:
    """The schema of its parameters; any object where it is too large and the function is not strict."""
    parameters: JsonObject = function.get("parameters") or ANY_OBJECT
    if not function.get("strict") and size_of(parameters, "parameters") > SCHEMA_BYTES_MAX:
        return ANY_OBJECT
    return parameters | {"type": "object"}


def _check_tools(given: Any, is_flat: bool) -> list[str]:
    """Their names."""
    if not isinstance(given, list) or len(given) > TOOLS_MAX:
        raise invalid_value("tools", f"must be a list of at most {TOOLS_MAX} tools")
    if size_of(given, "tools") > TOOLS_BYTES_MAX:
        raise invalid_value("tools", f"tools may have {TOOLS_BYTES_MAX} bytes together")
    names = [_check_tool(tool, f"tools[{index}]", is_flat) for index, tool in enumerate(given)]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise invalid_value("tools", f"there are two functions with the name '{twice}'")
    return names


def _check_tool(tool: Any, at: str, is_flat: bool) -> str:
    """Checks a tool. Returns its name."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise InvalidRequest(
            f"Invalid '{at}.type': tools of type '{kind}' are not supported; use 'function'.",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    if not isinstance(tool, dict) or kind != "function":
        raise invalid_value(f"{at}.type", "must be 'function'")
    return _check_function(tool, at) if is_flat else _check_function(tool.get("function"), f"{at}.function")


def _check_function(function: Any, at: str) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid_value(f"{at}.name", "must be 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(function.get("description"), str | None):
        raise invalid_value(f"{at}.description", "must be a string")
    if not isinstance(function.get("strict"), bool | None):
        raise invalid_value(f"{at}.strict", "must be true or false")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise invalid_value(f"{at}.parameters", "a schema must be an object")
    if function.get("strict") and parameters is not None:
        check_schema(parameters, f"{at}.parameters")
        if parameters.get("type", "object") != "object":
            raise invalid_value(f"{at}.parameters.type", "must be 'object'")
    return name


def _nested(tool: JsonObject) -> JsonObject:
    """A flat tool as chat templates know it."""
    given = {name: tool.get(name) for name in ("name", "description", "parameters", "strict")}
    return {
        "type": "function",
        "function": {name: value for name, value in given.items() if value is not None},
    }


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The functions that `tool_choice` asks for."""

    names: Sequence[str]  # of the functions that may be called
    must_call: bool
    is_one: bool = False  # one call, of the function that is named


def _chosen(choice: Any, names: Sequence[str], is_flat: bool) -> _Chosen:
    if choice in (None, "auto", "required"):
        return _Chosen(names, must_call=choice == "required")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "allowed_tools":
        return _allowed(choice, names, is_flat)
    function = choice if is_flat or kind is None else choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or kind != "function":
        raise invalid_value(
            "tool_choice",
            "must be none, auto, required, allowed tools, or the name of a function in an object",
        )
    if name not in names:
        raise invalid_value("tool_choice", f"there is no function '{name[:NAMED_CHARS_MAX]}' among 'tools'")
    return _Chosen([name], must_call=True, is_one=True)


def _allowed(choice: JsonObject, names: Sequence[str], is_flat: bool) -> _Chosen:
    """The tools that this answer may call; the model is shown all."""
    given, at = (
        (choice, "tool_choice") if is_flat else (choice.get("allowed_tools"), "tool_choice.allowed_tools")
    )
    if not isinstance(given, dict):
        raise missing(at)
    if given.get("mode") not in ("auto", "required"):
        raise invalid_value(f"{at}.mode", "must be auto or required")
    tools = given.get("tools")
    if not isinstance(tools, list) or not 1 <= len(tools) <= TOOLS_MAX:
        raise invalid_value(f"{at}.tools", f"must be a list of 1 to {TOOLS_MAX} tools")
    allowed = {_named(tool, names, f"{at}.tools[{index}]", is_flat) for index, tool in enumerate(tools)}
    return _Chosen([name for name in names if name in allowed], must_call=given["mode"] == "required")


def _named(tool: Any, names: Sequence[str], at: str, is_flat: bool) -> str:
    """The name of a function among the request's tools."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise invalid_value(f"{at}.type", "must be 'function'")
    function, at = (tool, at) if is_flat else (tool.get("function"), f"{at}.function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise missing(f"{at}.name")
    if name not in names:
        raise invalid_value(f"{at}.name", f"there is no function '{name[:NAMED_CHARS_MAX]}' among 'tools'")
    return name
