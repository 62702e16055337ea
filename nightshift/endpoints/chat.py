"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift.endpoints.generation import Choice, Conversation, GenerationRequest, TextEndpoint
from nightshift.endpoints.logprobs import Chance, Chosen, escaped, shown, token_text
from nightshift.endpoints.requests import Count
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import SERVICE_TIER_OF_CLASS, PriorityClass

LOGPROBS_MAX: Final = 20


class TextPart(BaseModel):
    """A part of a message's content. Only text can be understood here."""

    type: str
    text: str = ""

    @model_validator(mode="after")
    def _is_text(self) -> "TextPart":
        if self.type not in ("text", "input_text"):
            raise ValueError(f"content of type {self.type!r} is not supported; use text")
        return self


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @model_validator(mode="before")
    @classmethod
    def _has_no_tool_calls(cls, data: Any) -> Any:
        for name in ("tool_calls", "function_call"):
            if isinstance(data, dict) and data.get(name):
                raise ValueError(f"'{name}' of a message is not supported by this service")
        return data

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX, strict=True)] | None = None

    @model_validator(mode="after")
    def _logprobs_first(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "Invalid 'top_logprobs': 'logprobs' must be true to use it.", param="top_logprobs"
            )
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def output_limits(self) -> dict[str, int | None]:
        return {"max_completion_tokens": self.max_completion_tokens, **super().output_limits}

    @property
    def prompt_given(self) -> Conversation:
        """OpenAI renamed `system` to `developer`."""
        return Conversation(
            [
                {"role": "system" if message.role == "developer" else message.role, "content": message.text}
                for message in self.messages
            ]
        )


class Chat(TextEndpoint):
    route = "/v1/chat/completions"
    name = "chat"
    operation = "create_chat_completion"
    summary = "Answer a conversation"
    request_type = ChatRequest
    prompt_field = "messages"
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "messages": [{"role": "user", "content": placeholder}]}

    def check_line(self, body: JsonObject) -> int:
        if not isinstance(body.get("messages"), list):
            raise InvalidRequest(
                "'messages' must be a list.", param="messages", code="missing_required_parameter"
            )
        return 0

    def choice_json(self, choice: Choice) -> JsonObject:
        return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}

    def choice_text(self, choice: JsonObject) -> str:
        return choice["message"]["content"] or ""

    def answer_extras(self, priority: PriorityClass) -> JsonObject:
        return {"service_tier": SERVICE_TIER_OF_CLASS[priority], "system_fingerprint": None}

    def chunk_opening(self) -> JsonObject:
        return {"delta": {"role": "assistant", "content": ""}}

    def chunk_delta(self, text: str) -> JsonObject:
        return {"delta": {"content": text}}

    def chunk_closing(self) -> JsonObject:
        return {"delta": {}}

    def chunk_extras(self) -> JsonObject:
        return {"system_fingerprint": None}

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        content = [
            _entry(each.chance) | {"top_logprobs": [_entry(other) for other in each.top]} for each in chosen
        ]
        return {"content": content, "refusal": None}


def _entry(chance: Chance) -> JsonObject:
    text = token_text(chance.token)
    said = escaped(chance.token) if text is None else text
    return {"token": said, "logprob": shown(chance.logprob), "bytes": list(chance.token)}
