"""What the endpoints that generate text share."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)

from nightshift.endpoints.answers import answer_usage
from nightshift.endpoints.endpoint import Cells, ColumnType, Endpoint
from nightshift.endpoints.guidance import Guidance, guidance_of
from nightshift.endpoints.logprobs import Chosen
from nightshift.endpoints.requests import Count, ModelRequest, at_most, null_means
from nightshift.endpoints.tools import Tools
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass

STOP_STRINGS_MAX: Final = 4
LOGIT_BIAS_MAX: Final = 1024
CHOICES_MAX: Final = 128
SEED_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """For a chat template."""

    messages: Sequence[JsonObject]  # role and content; tool_calls, tool_call_id and name where they are given
    tools: Sequence[JsonObject] = ()


Prompt = Conversation | str | list[int]  # or text, or token ids


def prompt_chars(prompt: Prompt) -> int:
    if isinstance(prompt, Conversation):
        content = sum(len(message["content"]) for message in prompt.messages)
        calls = [message["tool_calls"] for message in prompt.messages if "tool_calls" in message]
        return content + _chars_within([*calls, *prompt.tools])
    return len(prompt) if isinstance(prompt, str) else 0


def _chars_within(parts: list[Any]) -> int:
    """Of all strings and names, and one for each other value. Without recursion: they may be nested deep."""
    chars, left = 0, [*parts]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += [*part, *part.values()]
        elif isinstance(part, list):
            left += part
        else:
            chars += len(part) if isinstance(part, str) else 1
    return chars


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationRequest(ModelRequest):
    """What every request for text has: how to sample, when to stop."""

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX, strict=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-SEED_MAX - 1, le=SEED_MAX)] | None = None
    stop: Annotated[list[str], at_most(STOP_STRINGS_MAX), BeforeValidator(_one_or_many)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], at_most(LOGIT_BIAS_MAX)] | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: Annotated[bool, null_means(False)] = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: JsonObject | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: JsonObject | None = None

    also_unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Parameters that only other endpoints have, with their neutral values."""

    _guidance: Guidance | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _read_guidance(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        guidance = guidance_of(data) if isinstance(data, dict) else None
        request = handler(data)
        request._guidance = guidance
        return request

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: list[str] | None) -> list[str] | None:
        if value and "" in value:
            raise ValueError("a stop string cannot be empty")
        return value

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, harmless in (_UNSUPPORTED | cls.also_unsupported).items():
                if data.get(name) is not None and data[name] not in harmless:
                    raise InvalidRequest(
                        f"'{name}' is not supported by this service.",
                        param=name,
                        code="unsupported_parameter",
                    )
        return data

    @model_validator(mode="after")
    def _stream_first(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                param="stream_options",
            )
        return self

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def guidance(self) -> Guidance | None:
        """What the answer must be; None: any text."""
        return self._guidance

    @property
    def callable_tools(self) -> Tools | None:
        """What the answer may call."""
        return None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    @abstractmethod
    def prompt_given(self) -> Prompt:
        """The prompt to continue or answer."""

    @property
    def text_chars(self) -> int:
        return prompt_chars(self.prompt_given)

    @property
    @abstractmethod
    def logprobs_asked(self) -> int | None:
        """Alternatives per token's log-probability; None: no log-probabilities."""

    @property
    def output_tokens_max(self) -> int | None:
        """The most tokens to generate; None: up to the context's end."""
        return self.max_tokens

    @property
    def output_limits(self) -> dict[str, int | None]:
        """The limits on generated tokens as they were given, by field."""
        return {"max_tokens": self.max_tokens}


# Known but unsupported parameters, with their neutral values.
_UNSUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
    "guided_whitespace_pattern": (),
    "chat_template_kwargs": ({},),
}


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    finish_reason: str
    logprobs: JsonObject | None = None  # in the endpoint's shape
    calls: Sequence[JsonObject] = ()  # of tools, as the API shows them


class TextEndpoint(Endpoint):
    """An endpoint that a decoder serves."""

    model_kind = ModelKind.DECODER
    columns: Mapping[str, ColumnType] = {"text": ColumnType.TEXT}

    @property
    @abstractmethod
    def prompt_field(self) -> str:
        """The field named in errors about the prompt."""

    @property
    @abstractmethod
    def id_prefix(self) -> str:
        """The prefix of an answer's id, such as `chatcmpl-`."""

    @property
    @abstractmethod
    def object_name(self) -> str:
        """An answer's `object`, such as `chat.completion`."""

    @property
    @abstractmethod
    def chunk_object_name(self) -> str:
        """A stream event's `object`, such as `chat.completion.chunk`."""

    @abstractmethod
    def choice_json(self, choice: Choice) -> JsonObject:
        """A choice's fields, without its number, log-probabilities and finish reason."""

    @abstractmethod
    def choice_text(self, choice: JsonObject) -> str:
        """A choice's text, the reverse of `choice_json`."""

    @abstractmethod
    def chunk_opening(self) -> JsonObject | None:
        """A streamed choice's fields before any text; None: it begins with text."""

    @abstractmethod
    def chunk_delta(self, text: str) -> JsonObject:
        """A streamed choice's fields for new text."""

    @abstractmethod
    def chunk_closing(self) -> JsonObject:
        """A streamed choice's last fields."""

    def chunk_calls(self, choice: JsonObject) -> Sequence[JsonObject]:
        """The fields of the events for an answer's choice that calls tools, one event each."""
        return ()

    @abstractmethod
    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        """A choice's log-probabilities; each list has an entry per token."""

    def answer_extras(self, priority: PriorityClass) -> JsonObject:
        """An answer's further fields."""
        return {}

    def chunk_extras(self) -> JsonObject:
        """A stream event's further fields."""
        return {}

    def answer(
        self,
        request: ModelRequest,
        *,
        id: str,
        created_s: int,
        choices: Sequence[Choice],
        usage: Usage,
        priority: PriorityClass,
    ) -> JsonObject:
        """An answer's body. `created_s` is Unix time, `priority` the class that the request was run in."""
        return {
            "id": id,
            "object": self.object_name,
            "created": created_s,
            "model": request.model,
            "choices": [
                {
                    "index": index,
                    **self.choice_json(choice),
                    "logprobs": choice.logprobs,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": answer_usage(usage),
            **self.answer_extras(priority),
        }

    def cells(self, body: JsonObject) -> Cells:
        """The first choice's text; the body has the rest."""
        choices = body.get("choices")
        return Cells({"text": self.choice_text(choices[0]) if choices else None}, is_complete=False)
