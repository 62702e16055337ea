"""Tools: what a request offers, the grammar that a call has to be in, and the calls of an answer.

A call is text in the form of the Hermes and Qwen families. A model of another family is held to it where it
must call:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightshift.endpoints.guidance import Guidance
from nightshift.endpoints.schemas import SCHEMA_BYTES_MAX, check_schema, size_of
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

TOOLS_MAX: Final = 128
TOOLS_BYTES_MAX: Final = 4 * SCHEMA_BYTES_MAX
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
ANY_OBJECT: Final[JsonObject] = {"type": "object"}
SPACES_DROPPED_MAX: Final = 1024  # before the first call, where there is no other content
WHITESPACE: Final = r"[ \n\r\t]{1,32}"


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that an answer may call, or has to."""

    given: Sequence[JsonObject]  # as in the request, for the chat template
    callable: Sequence[str]  # names that this answer may call
    must_call: bool
    is_parallel: bool  # several calls in one answer

    @property
    def guidance(self) -> Guidance:
        """What an answer must be: in auto, text that may have calls."""
        rules = [rule for n, tool in enumerate(self._called) for rule in _rules(n, tool["function"])]
        objects = " | ".join(f"object_{n}" for n in range(len(self._called)))
        rules.append(f'body: "\\n" ({objects}) "\\n{END}"')
        if self.must_call:
            more = '("\\n" call)*' if self.is_parallel else ""
            rules += [f"start: call {more}", f'call: "{BEGIN}" body']
        else:
            start = "(before body)* TEXT" if self.is_parallel else "before body | TEXT"
            rules += [f"start: {start}", f"before[lazy]: /(.|\\n)*{BEGIN}/", "TEXT: /(.|\\n)*/"]
        return Guidance("grammar", "\n".join(rules), "tools")

    @property
    def _called(self) -> list[JsonObject]:
        return [tool for tool in self.given if tool["function"]["name"] in self.callable]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer's text, taken apart."""

    content: str
    calls: Sequence[tuple[str, JsonObject]] = ()
    """Names and arguments."""


def tools_of(data: JsonObject) -> Tools | None:
    """What a request offers; None: no tools, or none that may be called. Raises InvalidRequest."""
    given, choice, parallel = (data.get(name) for name in ("tools", "tool_choice", "parallel_tool_calls"))
    if not isinstance(parallel, bool | None):
        raise _invalid("parallel_tool_calls", "must be true or false")
    if given is None or given == []:
        for name in ("tool_choice", "parallel_tool_calls"):
            if data.get(name) is not None:
                raise _invalid(name, f"'{name}' is only allowed when 'tools' are specified")
        return None
    names = _check_tools(given)
    if choice == "none":
        return None
    chosen = _chosen(choice, names)
    must_call = choice not in (None, "auto")
    return Tools(given, [chosen] if chosen else names, must_call, parallel is not False and not chosen)


def read_calls(text: str, tools: Tools) -> Said:
    """Content and calls of an answer's text; all is content where a call is not whole or not to a tool."""
    content, *rest = text.split(BEGIN, 1)
    if not rest:
        return Said(text)
    calls: list[tuple[str, JsonObject]] = []
    at, decoder = len(content), json.JSONDecoder()
    while at >= 0:
        start = _after_spaces(text, at + len(BEGIN))
        try:
            call, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return Said(text)
        is_call = isinstance(call, dict) and isinstance(call.get("arguments"), dict)
        if not is_call or call.get("name") not in tools.callable:
            return Said(text)
        if not text.startswith(END, _after_spaces(text, end)):
            return Said(text)
        calls.append((call["name"], call["arguments"]))
        at = text.find(BEGIN, end)
    return Said("" if _is_blank(content) else content, calls if tools.is_parallel else calls[:1])


def call_json(call: tuple[str, JsonObject], answer_id: str, choice: int, index: int) -> JsonObject:
    """A call as the API shows it; its id is the same at every attempt."""
    name, arguments = call
    digest = hashlib.sha256(f"{answer_id}/{choice}/{index}".encode()).hexdigest()
    said = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{digest[:24]}", "type": "function", "function": said}


class ContentStream:
    """Passes on the text before an answer's first call, as it comes.

    Once all has come, what was passed on is the beginning of the answer's content.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False  # with something other than white space
        self._calls = False

    def push(self, text: str) -> str:
        """Text that is certainly content."""
        if self._calls:
            return ""
        self._held += text
        before, begin, _ = self._held.partition(BEGIN)
        self._calls = bool(begin)
        kept = 0 if begin else _beginning_at_end(before)
        sure = before[: len(before) - kept]
        if not self._has_begun and _is_blank(sure):
            return ""
        self._has_begun = True
        self._held = before[len(sure) :]
        return sure


def _is_blank(content: str) -> bool:
    return len(content) <= SPACES_DROPPED_MAX and not content.strip()


def _beginning_at_end(text: str) -> int:
    """How many of the last characters may be the beginning of a call."""
    longest = min(len(BEGIN) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if BEGIN.startswith(text[-n:])), 0)


def _after_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _rules(number: int, function: JsonObject) -> tuple[str, str]:
    schema = _arguments_schema(function) | {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    beginning = json.dumps(f'{{"name": "{function["name"]}", "arguments": ')
    return f'object_{number}: {beginning} arguments_{number} "}}"', (
        f"arguments_{number}: %json {json.dumps(schema)}"
    )


def _arguments_schema(function: JsonObject) -> JsonObject:
    """That of its parameters; one that cannot be kept to, of a function that is not strict, is any object."""
    parameters: JsonObject = function.get("parameters") or ANY_OBJECT
    if not function.get("strict"):
        try:
            check_schema(parameters, "parameters")
        except InvalidRequest:
            return ANY_OBJECT
    return parameters | {"type": "object"}


def _check_tools(given: Any) -> list[str]:
    """Their names."""
    if not isinstance(given, list) or len(given) > TOOLS_MAX:
        raise _invalid("tools", f"must be a list of at most {TOOLS_MAX} tools")
    if size_of(given, "tools") > TOOLS_BYTES_MAX:
        raise _invalid("tools", f"tools may have {TOOLS_BYTES_MAX} bytes together")
    names = [_check_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise _invalid("tools", f"there are two functions with the name '{twice}'")
    return names


def _check_tool(tool: Any, at: str) -> str:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise _invalid(f"{at}.type", "must be 'function'")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
        raise _invalid(f"{at}.function.name", "must be 1 to 64 letters, digits, '_' or '-'")
    if not isinstance(function.get("description"), str | None):
        raise _invalid(f"{at}.function.description", "must be a string")
    if not isinstance(function.get("strict"), bool | None):
        raise _invalid(f"{at}.function.strict", "must be true or false")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise _invalid(f"{at}.function.parameters", "a schema must be an object")
    if function.get("strict") and parameters is not None:
        check_schema(parameters, f"{at}.function.parameters")
        if parameters.get("type", "object") != "object":
            raise _invalid(f"{at}.function.parameters.type", "must be 'object'")
    return name


def _chosen(choice: Any, names: Sequence[str]) -> str | None:
    """The one function that is to be called; None: any of them."""
    if choice in (None, "auto", "required"):
        return None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or choice.get("type") != "function":
        raise _invalid("tool_choice", "must be none, auto, required, or the name of a function in an object")
    if name not in names:
        raise _invalid("tool_choice", f"there is no function '{name}' among 'tools'")
    return name


def _invalid(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {what}.", param=path, code="invalid_value")
