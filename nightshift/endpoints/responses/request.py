"""What a request for a response may say."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, PrivateAttr, WithJsonSchema, field_validator, model_validator

from nightshift.endpoints.generation import CallingRequest, Conversation, StreamOptions
from nightshift.endpoints.guidance import Guidance, GuidanceFields, read_format
from nightshift.endpoints.logprobs import ALTERNATIVES_MAX
from nightshift.endpoints.requests import Count, Metadata, at_most, invalid_type, unsupported
from nightshift.endpoints.responses.items import messages_of
from nightshift.endpoints.tools import Tools, tools_of
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

INCLUDES_MAX: Final = 16
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDABLE: Final = (LOGPROBS, "reasoning.encrypted_content")
"""No model's reasoning is kept apart here, so there is none to encrypt."""

STATEFUL: Final = ("store", "previous_response_id", "conversation", "background", "prompt")
"""Parameters that need stored responses."""

MOVED: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Parameters of chats, and what they are called here."""

Items = Annotated[
    Any,  # checked by `messages_of`
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


def read_text(value: object, field: str) -> Guidance | None:
    """The parameter `text`: a format, and how verbose an answer is to be. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise invalid_type(field, "an object", value)
    if value.get("verbosity") not in (None, "medium"):
        raise unsupported(f"{field}.verbosity")
    given = value.get("format")
    return None if given is None else read_format(given, f"{field}.format")


class EventOptions(StreamOptions):
    """Events have no padding; `include_obfuscation` may ask for none."""

    include_obfuscation: bool | None = None

    @field_validator("include_obfuscation")
    @classmethod
    def _none(cls, value: bool | None) -> bool | None:
        if value:
            raise unsupported("stream_options.include_obfuscation")
        return value


class ResponsesRequest(CallingRequest):
    """POST /v1/responses."""

    input: Items
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: JsonObject | None = None
    stream_options: EventOptions | None = None
    include: Annotated[list[str], at_most(INCLUDES_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=ALTERNATIVES_MAX, strict=True)] | None = None
    reasoning: JsonObject | None = None
    max_tool_calls: Count | None = None  # of tools that the server would run: it runs none
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    own_guidance: ClassVar[GuidanceFields] = {"text": read_text}
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (False,)}

    _messages: list[JsonObject] = PrivateAttr(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        for name in STATEFUL if isinstance(data, dict) else ():
            if data.get(name) not in (None, False):
                raise InvalidRequest(
                    f"'{name}' is not supported by this service, which stores no responses.",
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

    @field_validator("reasoning")
    @classmethod
    def _reasoning(cls, value: JsonObject | None) -> JsonObject | None:
        """To ask for none is neutral."""
        for name, part in (value or {}).items():
            if part is not None and (name, part) != ("effort", "none"):
                raise unsupported(f"reasoning.{name}")
        return value

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
        self._messages = messages_of(self.input, self.instructions)
        return self

    @classmethod
    def read_tools(cls, data: JsonObject) -> Tools | None:
        """Without tools, what says that none is called is neutral."""
        if not data.get("tools"):
            is_neutral = data.get("tool_choice") in ("none", "auto")
            neutral = {"parallel_tool_calls": None} | ({"tool_choice": None} if is_neutral else {})
            return tools_of(data | neutral, is_flat=True)
        return tools_of(data, is_flat=True)

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
        return [Conversation(self._messages, self.tools_shown)]
