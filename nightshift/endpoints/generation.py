"""What the endpoints that generate text have in common: sampling, choices, log-probabilities, streaming."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from nightshift.endpoints.answers import answer_usage
from nightshift.endpoints.endpoint import Cells, ColumnType, Endpoint
from nightshift.endpoints.logprobs import Chosen
from nightshift.endpoints.requests import Count, ModelRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject, Usage

STOP_STRINGS_MAX: Final = 4
LOGIT_BIAS_MAX: Final = 1024
CHOICES_MAX: Final = 128
SEED_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a chat template wants them: role and content."""

    messages: Sequence[dict[str, str]]


Prompt = Conversation | str | list[int]  # or text, or token ids


def prompt_chars(prompt: Prompt) -> int:
    """How much text a prompt has, in characters."""
    if isinstance(prompt, Conversation):
        return sum(len(message["content"]) for message in prompt.messages)
    return len(prompt) if isinstance(prompt, str) else 0


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
    stop: Annotated[list[str], BeforeValidator(_one_or_many), Field(max_length=STOP_STRINGS_MAX)] | None = (
        None
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=LOGIT_BIAS_MAX)]
        | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None

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
            for name, harmless in _UNSUPPORTED.items():
                if data.get(name) is not None and data[name] not in harmless:
                    raise InvalidRequest(
                        f"'{name}' is not supported by this service.",
                        param=name,
                        code="unsupported_parameter",
                    )
        return data

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    @abstractmethod
    def prompt_given(self) -> Prompt:
        """What is to be continued or answered."""

    @property
    def text_chars(self) -> int:
        return prompt_chars(self.prompt_given)

    @property
    @abstractmethod
    def logprobs_asked(self) -> int | None:
        """Alternatives to show beside each token's log-probability; None: no log-probabilities."""

    @property
    def output_tokens_max(self) -> int | None:
        """The most tokens that may be generated; None: as many as the context holds."""
        return self.max_tokens


# Parameters this service knows but does not offer, with the values that ask for nothing.
_UNSUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a prompt, of which there may be several."""

    text: str
    finish_reason: str
    logprobs: JsonObject | None = None  # in the shape of its endpoint


class TextEndpoint(Endpoint):
    """An endpoint that a decoder serves."""

    model_kind = ModelKind.DECODER
    columns: Mapping[str, ColumnType] = {"text": ColumnType.TEXT}

    @property
    @abstractmethod
    def prompt_field(self) -> str:
        """The field that errors about the prompt name."""

    @property
    @abstractmethod
    def id_prefix(self) -> str:
        """How the id of an answer begins, such as `chatcmpl-`."""

    @property
    @abstractmethod
    def object_name(self) -> str:
        """What an answer says it is, such as `chat.completion`."""

    @property
    @abstractmethod
    def chunk_object_name(self) -> str:
        """What an event of a streamed answer says it is, such as `chat.completion.chunk`."""

    @abstractmethod
    def choice_json(self, choice: Choice) -> JsonObject:
        """What a choice says, beside its number, its log-probabilities and its end."""

    @abstractmethod
    def choice_text(self, choice: JsonObject) -> str:
        """The text of a choice in an answer: the reverse of `choice_json`."""

    @abstractmethod
    def chunk_opening(self) -> JsonObject:
        """What a streamed choice says before any text."""

    @abstractmethod
    def chunk_delta(self, text: str) -> JsonObject:
        """What a streamed choice says of new text."""

    @abstractmethod
    def chunk_closing(self) -> JsonObject:
        """What a streamed choice says in the end."""

    @abstractmethod
    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        """Log-probabilities as a choice shows them: each list in it has an entry per token."""

    def answer_extras(self, request: ModelRequest) -> JsonObject:
        """What an answer says beside its choices and token counts."""
        return {}

    def chunk_extras(self) -> JsonObject:
        """What an event says beside its choices."""
        return {}

    def answer(
        self, request: ModelRequest, *, id: str, created_s: int, choices: Sequence[Choice], usage: Usage
    ) -> JsonObject:
        """The body of an answer. `created_s` is Unix time."""
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
            **self.answer_extras(request),
        }

    def cells(self, body: JsonObject) -> Cells:
        """The first choice's text. The body has the rest: other choices, log-probabilities, how it ended."""
        choices = body.get("choices")
        return Cells({"text": self.choice_text(choices[0]) if choices else None}, say_all=False)
