"""The wire, to us: what a request to a model may say. `answers.py` has the other half.

Spoken by the API (online requests), by the workers (every row of a bulk job is such a request) and by nobody
else. Names and shapes are OpenAI's, extensions are vLLM's. What is known but not supported is refused by
name; what is unknown is ignored.
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from nightshift.errors import InvalidRequest
from nightshift.jobs import Endpoint, JsonObject
from nightshift.jobs.priorities import CLASS_OF_SERVICE_TIER, PriorityClass

STOP_STRINGS_MAX: Final = 4
EMBEDDING_INPUTS_MAX: Final = 2048
LOGIT_BIAS_MAX: Final = 1024
CHOICES_MAX: Final = 128
CHAT_LOGPROBS_MAX: Final = 20
COMPLETION_LOGPROBS_MAX: Final = 5
SEED_MAX: Final = 2**63 - 1
DEFAULT_COMPLETION_TOKENS: Final = 16  # of /v1/completions, as at OpenAI

Count = Annotated[int, Field(ge=1, strict=True)]


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
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ModelRequest(BaseModel):
    """What every request to a model has."""

    model_config = ConfigDict(extra="ignore", strict=False)

    model: Annotated[str, Field(min_length=1, max_length=255)]
    user: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    priority: PriorityClass | None = None  # extension: what our own routes call it

    @field_validator("priority", mode="before")
    @classmethod
    def _priority(cls, value: object) -> object:
        """vLLM's numbers are understood too: lower is sooner, 0 is what everybody gets."""
        if isinstance(value, int) and not isinstance(value, bool):
            return PriorityClass.INTERACTIVE if value <= 0 else PriorityClass.BACKGROUND
        return value

    @property
    def priority_class(self) -> PriorityClass:
        """How an online request is queued: a person is waiting unless it says otherwise."""
        if self.priority is not None:
            return self.priority
        return CLASS_OF_SERVICE_TIER[self.service_tier or "auto"]


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
        """How many answers are wanted to the one prompt."""
        return self.n or 1

    @property
    @abstractmethod
    def logprobs_asked(self) -> int | None:
        """How many alternatives to show beside each token's log-probability; None: show nothing."""

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


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=CHAT_LOGPROBS_MAX, strict=True)] | None = None

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
    def conversation(self) -> list[dict[str, str]]:
        """Messages as a chat template wants them. `developer` is the newer word for `system`."""
        return [
            {"role": "system" if message.role == "developer" else message.role, "content": message.text}
            for message in self.messages
        ]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. One prompt a request: text, or token ids."""

    prompt: str | list[Annotated[int, Field(ge=0)]]
    logprobs: Annotated[int, Field(ge=0, le=COMPLETION_LOGPROBS_MAX, strict=True)] | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_wanted(cls, value: object) -> object:
        return None if value is False else value  # as chats say it

    @property
    def logprobs_asked(self) -> int | None:
        return self.logprobs

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: object) -> object:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            return value[0]
        if isinstance(value, list) and any(isinstance(item, str | list) for item in value):
            raise ValueError("several prompts in one request are not supported; send one request each")
        if value == []:
            raise ValueError("the prompt has no tokens")
        return value

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


class EmbeddingRequest(ModelRequest):
    """POST /v1/embeddings. `inputs` are the texts, or token id lists, one by one."""

    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None

    @field_validator("encoding_format", mode="before")
    @classmethod
    def _default_format(cls, value: object) -> object:
        return "float" if value is None else value

    @field_validator("input")
    @classmethod
    def _input(cls, value: object) -> object:
        embedding_inputs(value)
        return value

    @property
    def inputs(self) -> list[str | list[int]]:
        return embedding_inputs(self.input)

    @property
    def num_choices(self) -> int:
        return 1

    @property
    def streams(self) -> bool:
        return False

    @property
    def include_usage(self) -> bool:
        return False


Request = ChatRequest | CompletionRequest | EmbeddingRequest

_REQUESTS: Final[dict[Endpoint, type[ChatRequest] | type[CompletionRequest] | type[EmbeddingRequest]]] = {
    Endpoint.CHAT: ChatRequest,
    Endpoint.COMPLETIONS: CompletionRequest,
    Endpoint.EMBEDDINGS: EmbeddingRequest,
}


def parse_request(endpoint: Endpoint, body: JsonObject) -> Request:
    """A request body as its type. Raises InvalidRequest naming the first field that is wrong."""
    try:
        return _REQUESTS[endpoint].model_validate(body)
    except ValidationError as error:
        raise invalid_request(error) from error


def embedding_inputs(value: object) -> list[str | list[int]]:
    """The four shapes of an embedding input, as a list. Raises ValueError."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_token(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("input must be a text, a list of texts, a list of tokens or a list of token lists")
    if len(value) > EMBEDDING_INPUTS_MAX:
        raise ValueError(f"at most {EMBEDDING_INPUTS_MAX} inputs in one request, got {len(value)}")
    for position, item in enumerate(value):
        if isinstance(item, str) and item:
            continue
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            continue
        raise ValueError(f"input[{position}] must be a text or a list of tokens, and not empty")
    return value


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The first thing wrong, in the words of the API: which field, what was expected."""
    errors = error.errors(include_url=False, include_context=False)
    field = errors[0]["loc"][:1]
    # Of a union's branches, the one that came furthest is the one that was meant.
    first = max((e for e in errors if e["loc"][:1] == field), key=lambda e: len(e["loc"]))
    param = _path(first["loc"])
    code = _CODES.get(first["type"], "invalid_value")
    message = first["msg"].removeprefix("Value error, ")
    if code == "missing_required_parameter":
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code=code)
    return InvalidRequest(
        f"Invalid '{param}': {message}." if param else message, param=param or None, code=code
    )


_CODES: Final = {
    "missing": "missing_required_parameter",
    "int_type": "invalid_type",
    "int_parsing": "invalid_type",
    "float_type": "invalid_type",
    "float_parsing": "invalid_type",
    "string_type": "invalid_type",
    "bool_type": "invalid_type",
    "bool_parsing": "invalid_type",
    "list_type": "invalid_type",
    "dict_type": "invalid_type",
    "model_type": "invalid_type",
    "less_than_equal": "above_max_value",
    "greater_than_equal": "below_min_value",
}

# What pydantic puts into a location to tell the branches of a union apart; a caller has never heard of them.
_UNION_BRANCHES: Final = re.compile(r"str$|list\[|function-|constrained-")


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_BRANCHES.match(part):
            path += f".{part}" if path else part
    return path
