"""What a request for a response may say."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, WithJsonSchema, field_validator, model_validator

from nightshift.endpoints.hints import AS_TEMPLATED, Effort, Summary, Verbosity, WithoutEffect
from nightshift.endpoints.requests import MESSAGES_MAX, Count, at_most, invalid_type, unsupported
from nightshift.endpoints.responses.items import messages_of
from nightshift.endpoints.structured.guidance import Guidance, GuidanceFields, read_format
from nightshift.endpoints.structured.tools import Tools, tools_of
from nightshift.endpoints.texts.generation import CallingRequest, Conversation
from nightshift.endpoints.texts.logprobs import ALTERNATIVES_MAX
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

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
"""Only log-probabilities are ever there: no reasoning is kept apart, no images and no tools of a server are
accepted.
"""
NO_REASONING: Final = WithoutEffect("no reasoning is kept apart")

STATEFUL: Final = ("store", "previous_response_id", "conversation", "background", "prompt")
"""Parameters that need stored responses."""

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
    effort: Annotated[Effort | None, AS_TEMPLATED] = None
    summary: Annotated[Summary | None, NO_REASONING] = None
    generate_summary: Annotated[Summary | None, NO_REASONING] = None
    context: Annotated[Literal["auto", "current_turn", "all_turns"] | None, NO_REASONING] = None
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
        Literal["auto", "enabled", "disabled"] | None, WithoutEffect("no images are accepted")
    ] = None


class ResponsesRequest(CallingRequest):
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
