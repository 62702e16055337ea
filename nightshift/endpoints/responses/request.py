"""The fields of a request for a response, and its input as messages for a chat template:

    message                 a message; its parts are text, images, sounds and files
    function_call           a call in the assistant's message before it, or in one of its own
    function_call_output    a message of the tool
    reasoning               the thought of the assistant's message that follows

Items are read one by one, so that an error names its place and costs nothing more.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, WithJsonSchema, field_validator, model_validator

from nightshift.endpoints.parameters import Effort, Summary, Verbosity, WithoutEffect
from nightshift.endpoints.requests import (
    MESSAGES_MAX,
    PARTS_MAX,
    Count,
    array_above,
    at_most,
    invalid_type,
    invalid_value,
    missing,
    unsupported,
)
from nightshift.endpoints.responses.storing import FIELDS, Storing
from nightshift.endpoints.structured.guidance import Guidance, GuidanceFields, read_format
from nightshift.endpoints.structured.tools import CALLS_MAX, NAME, Tools, arguments_of, called, tools_of
from nightshift.endpoints.texts.chat import check_media
from nightshift.endpoints.texts.generation import CallingRequest, Conversation, template_role
from nightshift.endpoints.texts.logprobs import ALTERNATIVES_MAX
from nightshift.endpoints.texts.reasoning import ReasoningRequest, with_thought
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

ROLES: Final = ("user", "assistant", "system", "developer")
NAMED_CHARS_MAX: Final = 64  # of a type in a message

# The field of each kind of part that has its text.
_TEXTS: Final[Mapping[str, str]] = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA: Final = ("input_image", "input_audio", "input_file")
_THOUGHTS: Final[Mapping[str, str]] = {"reasoning_text": "text", "summary_text": "text"}  # of reasoning items


def messages_of(given: object, instructions: str | None) -> "_Items":
    """Raises InvalidRequest naming the first wrong part."""
    items = _Items()
    if instructions is not None:
        items.messages.append({"role": "system", "content": instructions})
    if given is None:
        raise missing("input")
    if isinstance(given, str):
        items.messages.append({"role": "user", "content": given})
        return items
    if not isinstance(given, list):
        raise invalid_type("input", "a string or an array", given)
    if not given:
        raise invalid_value("input", "must have at least one item")
    if len(given) > MESSAGES_MAX:
        raise array_above("input", MESSAGES_MAX, given)
    for index, item in enumerate(given):
        items.add(item, f"input[{index}]")
    return items


class _Items:
    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.media: dict[str, str] = {}  # as a conversation has them
        self._names: dict[str, str] = {}  # of called functions, by the call's id
        self._thought: str | None = None  # of the assistant's next message

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
        elif kind == "reasoning":
            self._thought = _thought(item, at)
        elif kind is None:
            raise missing(f"{at}.type")
        else:
            known = "message, function_call, function_call_output or reasoning"
            raise _unknown(kind, f"{at}.type", "an item", known)

    def _add_message(self, item: JsonObject, at: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise invalid_value(f"{at}.role", f"must be one of {', '.join(ROLES)}")
        content = self._content(item.get("content"), f"{at}.content")
        self._append({"role": template_role(role), "content": content})

    def _append(self, message: JsonObject) -> None:
        """Adds a message, to one of the assistant the thought that came before it."""
        thought, self._thought = self._thought, None
        self.messages.append(with_thought(message, thought if message["role"] == "assistant" else None))

    def _add_call(self, item: JsonObject, at: str) -> None:
        id, name, arguments = (_string(item, field, at) for field in ("call_id", "name", "arguments"))
        if not NAME.fullmatch(name):
            raise invalid_value(f"{at}.name", "must be 1 to 64 letters, digits, '_' or '-'")
        try:
            call = called(id, name, arguments_of(arguments))
        except ValueError as error:
            raise invalid_value(f"{at}.arguments", str(error)) from error
        self._names[id] = name
        if self._thought is not None or not self.messages or self.messages[-1]["role"] != "assistant":
            self._append({"role": "assistant", "content": ""})
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
        content = self._content(item.get("output"), f"{at}.output")
        result = {"role": "tool", "content": content, "tool_call_id": id, "name": self._names[id]}
        self._append(result)

    def _content(self, value: Any, at: str) -> str | list[JsonObject]:
        """Text, or the parts of a chat's message where not all are text."""
        if not isinstance(value, list) or len(value) > PARTS_MAX:
            return _text(value, at)
        parts = [self._part(part, f"{at}[{index}]") for index, part in enumerate(value)]
        if any(part["type"] != "text" for part in parts):
            return parts
        return "".join(part["text"] for part in parts)

    def _part(self, part: Any, at: str) -> JsonObject:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _MEDIA:
            return {"type": "text", "text": _part_text(part, at, _TEXTS)}
        self.media[f"{at}.type"] = kind
        try:
            check_media(part)
        except ValueError as error:
            raise invalid_value(at, str(error)) from error
        said = {name: value for name, value in part.items() if name != "type"}
        if kind == "input_image":
            said = {"url": _string(part, "image_url", at)} | said
            del said["image_url"]
            return {"type": "image_url", "image_url": said}
        return part if kind == "input_audio" else {"type": "file", "file": said}


def _string(item: JsonObject, field: str, at: str) -> str:
    value = item.get(field)
    if value is None:
        raise missing(f"{at}.{field}")
    if not isinstance(value, str):
        raise invalid_type(f"{at}.{field}", "a string", value)
    return value


def _thought(item: JsonObject, at: str) -> str | None:
    """The thought of an earlier answer, or its summary; None where only an encrypted one is there."""
    for field in ("content", "summary"):
        if item.get(field):
            return _text(item[field], f"{at}.{field}", _THOUGHTS)
    return None


def _text(value: Any, at: str, kinds: Mapping[str, str] = _TEXTS) -> str:
    """The text of a string or of a list of parts of these kinds."""
    if isinstance(value, str):
        return value
    if value is None:
        raise missing(at)
    if not isinstance(value, list):
        raise invalid_type(at, "a string or an array", value)
    if len(value) > PARTS_MAX:
        raise array_above(at, PARTS_MAX, value)
    return "".join([_part_text(part, f"{at}[{index}]", kinds) for index, part in enumerate(value)])


def _part_text(part: Any, at: str, kinds: Mapping[str, str]) -> str:
    if not isinstance(part, dict):
        raise invalid_type(at, "an object", part)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if not isinstance(kind, str) or kind not in kinds:
        raise _unknown(kind, f"{at}.type", "content", f"{' or '.join([*kinds][:2])}")
    return _string(part, kinds[kind], at)


def _unknown(kind: object, at: str, what: str, known: str) -> InvalidRequest:
    if not isinstance(kind, str):
        return invalid_type(at, "a string", kind)
    said = f"{what} of type {kind[:NAMED_CHARS_MAX]!r} is not supported; use {known}"
    return InvalidRequest(f"Invalid '{at}': {said}.", param=at, code=unsupported(at).code)


INCLUDES_MAX: Final = 16
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDABLE: Final = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Only log-probabilities are ever there: reasoning is not encrypted, no tools of a server are accepted."""
UNSUMMARISED: Final = WithoutEffect("a thought comes whole, not as a summary")

STATEFUL: Final = ("conversation", "prompt")
"""Parameters that need objects that this service does not have."""

MOVED: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Parameters of chats, and what they are called here."""

Items = Annotated[
    Any,  # checked by `messages_of`
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object"}, "maxItems": MESSAGES_MAX},
            ]
        }
    ),
]


def read_text(value: object, field: str) -> Guidance | None:
    """The format in the parameter `text`. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise invalid_type(field, "an object", value)
    given = value.get("format")
    return None if given is None else read_format(given, f"{field}.format")


class TextOptions(BaseModel):
    format: JsonObject | None = None  # read by `read_text`
    verbosity: Annotated[Verbosity | None, WithoutEffect("say it in the prompt")] = None


class Reasoning(BaseModel):
    effort: Effort | None = None
    summary: Annotated[Summary | None, UNSUMMARISED] = None
    generate_summary: Annotated[Summary | None, UNSUMMARISED] = None
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None,
        WithoutEffect("the model's chat template says which earlier thoughts it shows"),
    ] = None
    mode: Literal["standard"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields and data[name] is not None:
                raise unsupported(f"reasoning.{name}")
        return data


class ImageOptions(BaseModel):
    context_compression: Annotated[
        Literal["auto", "enabled", "disabled"] | None, WithoutEffect("images are passed on as they are")
    ] = None


class ResponsesRequest(CallingRequest, ReasoningRequest):
    """POST /v1/responses."""

    input: Items
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    include: Annotated[list[str], at_most(INCLUDES_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=ALTERNATIVES_MAX, strict=True)] | None = None
    reasoning: Reasoning | None = None
    image: ImageOptions | None = None
    max_tool_calls: Annotated[Count | None, WithoutEffect("the server runs no tools")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, WithoutEffect("nothing is cut: too long an input is refused")
    ] = None

    own_guidance: ClassVar[GuidanceFields] = {"text": read_text}
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (False,)}

    _items: _Items = PrivateAttr()
    _storing: Storing | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        for name in STATEFUL if isinstance(data, dict) else ():
            if data.get(name) not in (None, False):
                raise unsupported(name)
        for name in FIELDS if isinstance(data, dict) else ():
            if data.get(name) not in (None, False):
                raise InvalidRequest(
                    f"'{name}' is for POST /v1/responses alone: a job has its responses in its results, so "
                    "leave it out.",
                    param=name,
                    code="unsupported_parameter",
                )
        for name, moved in MOVED.items() if isinstance(data, dict) else ():
            if data.get(name) is not None:  # OpenAI's sentence
                raise InvalidRequest(
                    f"Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to "
                    f"'{moved}'.",
                    param=name,
                    code="unsupported_parameter",
                )
        return data

    @field_validator("include")
    @classmethod
    def _include(cls, value: list[str] | None) -> list[str] | None:
        for index, name in enumerate(value or ()):
            if name not in INCLUDABLE:
                raise unsupported(f"include[{index}]")
        return value

    @model_validator(mode="after")
    def _asks_for_logprobs(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or ()):
            raise InvalidRequest(
                f"Invalid 'top_logprobs': 'include' must have '{LOGPROBS}' to use it.", param="top_logprobs"
            )
        return self

    @model_validator(mode="after")
    def _read_items(self) -> Self:
        self._items = messages_of(self.input, self.instructions)
        return self

    @classmethod
    def read_tools(cls, data: JsonObject) -> Tools | None:
        """Reads the tools. Without any, a choice that calls none is accepted."""
        if not data.get("tools"):
            is_neutral = data.get("tool_choice") in ("none", "auto")
            neutral = {"parallel_tool_calls": None} | ({"tool_choice": None} if is_neutral else {})
            return tools_of(data | neutral, is_flat=True)
        return tools_of(data, is_flat=True)

    @property
    def storing(self) -> Storing | None:
        """The way its response is kept; None: it is no request of its own."""
        return self._storing

    def stored_as(self, storing: Storing) -> Self:
        self._storing = storing
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_output_tokens

    @property
    def output_limits(self) -> dict[str, int | None]:
        return {"max_output_tokens": self.max_output_tokens}

    @property
    def prompts_given(self) -> list[Conversation]:
        arguments = self.chat_template_kwargs or {}
        messages, media = self._items.messages, self._items.media
        return [Conversation(messages, self.tools_shown, "answer", arguments, self.effort, media)]

    @property
    def effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning is not None else None
