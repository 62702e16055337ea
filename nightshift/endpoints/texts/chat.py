"""POST /v1/chat/completions."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from nightshift.endpoints.answer_objects import ChatCompletionObject
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.parameters import Effort, Flag, Verbosity, WithoutEffect
from nightshift.endpoints.requests import MESSAGES_MAX, PARTS_MAX, Count, array_at_most, at_most
from nightshift.endpoints.results import Result
from nightshift.endpoints.structured.tools import CALLS_MAX, Tools, arguments_of, called
from nightshift.endpoints.texts.choices import ChoicesEndpoint, ChoicesRequest, Chunks, asked_for
from nightshift.endpoints.texts.functions import call_message, calls_in, functions_of, in_old_form
from nightshift.endpoints.texts.generation import (
    REASONING,
    CallingRequest,
    Choice,
    Conversation,
    Ending,
    GenerationRequest,
    TextEndpoint,
    ending_of,
    template_role,
)
from nightshift.endpoints.texts.logprobs import ALTERNATIVES_MAX, Chosen, entries
from nightshift.endpoints.texts.reasoning import ReasoningRequest, ThoughtFields, with_thought
from nightshift.endpoints.texts.streams import AnswerEvents, AnswerHead, CallPiece, StreamEvent
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import SERVICE_TIER_OF_CLASS, PriorityClass

TEXTS: Final = ("text", "input_text", "refusal")  # types of parts
ROLE_CHARS_MAX: Final = 64
SHARED: Final = ("file_id", "uuid")
"""Names of what a model's server keeps, also for other tenants: OpenAI's files, vLLM's cached inputs."""


class ContentPart(BaseModel):
    """A part of a message's content: text, or what only some models understand, kept as it is given."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"required": ["type"]})

    type: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _may_be_no_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "refusal" and "refusal" in data:  # of an earlier answer
            return {"type": "text", "text": data["refusal"]}
        if not isinstance(kind, str) or kind in TEXTS:
            return data
        check_media(data)
        return data | {"text": ""}

    @property
    def for_template(self) -> JsonObject:
        if self.type in TEXTS:
            return {"type": "text", "text": self.text}
        return {"type": self.type, **(self.model_extra or {})}


def check_media(part: JsonObject) -> None:
    """Raises ValueError for a part that names content in place of giving it."""
    for given in (part, *part.values()):
        for name in SHARED if isinstance(given, dict) else ():
            if given.get(name) is not None:
                raise ValueError(f"'{name}' is not supported; give the content itself")


Content = Annotated[str | Annotated[list[ContentPart], Field(fail_fast=True)], at_most(PARTS_MAX)]


class CalledFunction(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _have_few_entries(cls, value: str) -> str:
        arguments_of(value)
        return value


class ToolCall(BaseModel):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def for_template(self) -> JsonObject:
        """Templates write the arguments themselves, so they get them as an object where they are one."""
        return called(self.id, self.function.name, arguments_of(self.function.arguments))


class ChatMessage(ThoughtFields):
    model_config = ConfigDict(extra="ignore")

    role: Annotated[str, Field(min_length=1, max_length=ROLE_CHARS_MAX)]
    content: Content
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True), at_most(CALLS_MAX)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _may_be_calls_alone(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = call_message(data)
        if data.get("tool_calls") and data.get("role") != "assistant":
            raise ValueError("'tool_calls' belong to messages of the assistant")
        if data.get("role") == "tool" and not data.get("tool_call_id"):
            raise ValueError(
                "a message of the role 'tool' needs 'tool_call_id', the id of the call it answers"
            )
        thought = data.get("reasoning_content") or data.get("reasoning")  # an answer that was cut off in it
        has_none = (data.get("tool_calls") or thought) and data.get("content") is None
        return data | {"content": ""} if has_none else data

    @property
    def for_template(self) -> JsonObject:
        has_media = any(part.type not in TEXTS for part in self.parts)
        content = [part.for_template for part in self.parts] if has_media else self.text
        message: JsonObject = {"role": template_role(self.role), "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template for call in self.tool_calls]
        if self.role == "tool":
            more = {"tool_call_id": self.tool_call_id, "name": self.name}
            message |= {name: value for name, value in more.items() if value is not None}
        return with_thought(message, self.thought if self.role == "assistant" else None)

    @property
    def parts(self) -> Sequence[ContentPart]:
        return self.content if isinstance(self.content, list) else ()

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


def media_of(messages: Sequence[ChatMessage]) -> Mapping[str, str]:
    """Types of the parts that are no text, by their places."""
    return {
        f"messages[{at}].content[{number}]": part.type
        for at, message in enumerate(messages)
        for number, part in enumerate(message.parts)
        if part.type not in TEXTS
    }


def with_text_arguments(message: JsonObject) -> JsonObject:
    """A message for templates as chats have it: the arguments of its calls are text."""
    calls = [
        call | {"function": function | {"arguments": _text_of(function["arguments"])}}
        for call in message.get("tool_calls", ())
        for function in [call["function"]]
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _text_of(arguments: JsonObject | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _thought(text: str) -> JsonObject:
    """A thought by both of vLLM's names."""
    return {"reasoning_content": text, "reasoning": text}


class Prediction(BaseModel):
    """The text that an answer is expected to have."""

    type: Literal["content"]
    content: Content


class ChatRequest(ChoicesRequest, CallingRequest, ReasoningRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, fail_fast=True), array_at_most(MESSAGES_MAX, "messages")
    ]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=ALTERNATIVES_MAX, strict=True)] | None = None
    verbosity: Annotated[Verbosity | None, WithoutEffect("say it in the prompt")] = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    functions: list[JsonObject] | None = None
    function_call: str | JsonObject | None = None
    reasoning_effort: Effort | None = None
    prediction: Annotated[Prediction | None, WithoutEffect("every token is generated")] = None

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (False,)}

    @classmethod
    def read_tools(cls, data: JsonObject) -> Tools | None:
        return functions_of(data) or super().read_tools(data)

    _ending: Ending = PrivateAttr(default="answer")

    @model_validator(mode="after")
    def _read_ending(self) -> "ChatRequest":
        self._ending = ending_of(self.add_generation_prompt, self.continue_final_message)
        return self

    @model_validator(mode="after")
    def _logprobs_first(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "Invalid 'top_logprobs': 'logprobs' must be true to use it.", param="top_logprobs"
            )
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return len(self.listed_token_ids) or self.top_logprobs or 0 if self.logprobs else None

    def echoed(self, prompt: int) -> str:
        """The beginning of the answer, where the last message is one of the assistant's, as in vLLM."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def output_limits(self) -> dict[str, int | None]:
        return {"max_completion_tokens": self.max_completion_tokens, **super().output_limits}

    @property
    def prompts_given(self) -> list[Conversation]:
        messages = [message.for_template for message in self.messages]
        arguments = self.chat_template_kwargs or {}
        media = media_of(self.messages)
        return [Conversation(messages, self.tools_shown, self._ending, arguments, self.effort, media)]

    @property
    def effort(self) -> str | None:
        return self.reasoning_effort


class Chat(ChoicesEndpoint):
    route = "/v1/chat/completions"
    name = "chat"
    operation = "create_chat_completion"
    summary = "Answer a conversation"
    request_type = ChatRequest
    answer_type = ChatCompletionObject
    prompt_field = "messages"
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    columns = dict.fromkeys((*TextEndpoint.columns, REASONING), ColumnType.TEXT)
    effort_path = ("reasoning_effort",)

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "messages": [{"role": "user", "content": placeholder}]}

    def check_line(self, body: JsonObject) -> int:
        if not isinstance(body.get("messages"), list):
            raise InvalidRequest(
                "'messages' must be a list.", param="messages", code="missing_required_parameter"
            )
        return 0

    def choice_json(self, choice: Choice) -> JsonObject:
        content = choice.text or (None if choice.calls else "")
        message: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        message |= _thought(choice.reasoning) if choice.reasoning else {}
        message |= {"tool_calls": list(choice.calls)} if choice.calls else {}
        return {"message": message} | asked_for(choice, "token_ids")

    def choice_text(self, choice: JsonObject) -> str:
        return choice["message"]["content"] or ""

    def choice_reasoning(self, choice: JsonObject) -> str:
        return choice["message"].get("reasoning_content") or ""

    def answer(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> JsonObject:
        body = super().answer(request, head, choices=choices, usage=usage)
        if _has_old_form(request):
            body["choices"] = [*map(in_old_form, body["choices"])]
        return body | asked_for(choices[0], "prompt_logprobs", "prompt_token_ids")

    def result(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> Result:
        result = super().result(request, head, choices=choices, usage=usage)
        if _has_old_form(request) and result.body is None:
            result.body = self.answer(request, head, choices=choices, usage=usage)
        return result

    def calls(self, answer: JsonObject) -> list[Sequence[JsonObject]]:
        return [calls_in(choice["message"]) for choice in answer["choices"]]

    def events(self, request: GenerationRequest, head: AnswerHead) -> AnswerEvents:
        assert isinstance(request, ChatRequest), "parsed by this endpoint"
        return OldChunks(self, request, head) if _has_old_form(request) else Chunks(self, request, head)

    def answer_extras(self, priority: PriorityClass) -> JsonObject:
        return {"service_tier": SERVICE_TIER_OF_CLASS[priority], "system_fingerprint": None}

    def chunk_opening(self, *, may_call: bool) -> JsonObject:
        """An answer that only calls has no content, not an empty one: clients add deltas to this."""
        return {"delta": {"role": "assistant", "content": None if may_call else ""}}

    def chunk_delta(self, text: str) -> JsonObject:
        return {"delta": {"content": text}}

    def chunk_reasoning(self, text: str) -> Sequence[JsonObject]:
        return [{"delta": _thought(text)}]

    def chunk_closing(self) -> JsonObject:
        return {"delta": {}}

    def chunk_call(self, piece: CallPiece, id: str) -> Sequence[JsonObject]:
        """First the call's name, then its arguments, as OpenAI streams them."""
        deltas: list[JsonObject] = []
        if piece.is_first:
            named = {"name": piece.name, "arguments": ""}
            deltas.append({"index": piece.index, "id": id, "type": "function", "function": named})
        if piece.arguments:
            deltas.append({"index": piece.index, "function": {"arguments": piece.arguments}})
        return [{"delta": {"tool_calls": [delta]}} for delta in deltas]

    def chunk_extras(self) -> JsonObject:
        return {"system_fingerprint": None}

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        return {"content": entries(chosen), "refusal": None}


class OldChunks(Chunks):
    """A streamed answer whose call is a `function_call`."""

    def call_piece(self, choice: int, piece: CallPiece) -> Sequence[StreamEvent]:
        named = {"name": piece.name} if piece.is_first else {}
        return [self._choice(choice, {"delta": {"function_call": named | {"arguments": piece.arguments}}})]


def _has_old_form(request: GenerationRequest) -> bool:
    return isinstance(request, ChatRequest) and bool(request.functions)
