"""The base of endpoints that generate text."""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)

from nightshift.endpoints.answers import ANSWER_HEAD_BYTES, AnswerSize, answer_id
from nightshift.endpoints.endpoint import ColumnType, Endpoint
from nightshift.endpoints.parameters import Flag, WithoutEffect
from nightshift.endpoints.requests import ModelRequest, TokenId, at_most, null_means
from nightshift.endpoints.results import Result, Values
from nightshift.endpoints.structured.guidance import Guidance, GuidanceFields, guidance_of
from nightshift.endpoints.structured.tools import CALLS_MAX, Tools, tools_of
from nightshift.endpoints.texts.logprobs import Chosen
from nightshift.endpoints.texts.streams import AnswerEvents, AnswerHead, Piece
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

REASONING: Final = "reasoning"  # the column of thoughts, of endpoints that part them
STOP_STRINGS_MAX: Final = 4
STOP_TOKENS_MAX: Final = 128
LOGIT_BIAS_MAX: Final = 1024
ALLOWED_TOKENS_MAX: Final = 1024
SEED_MAX: Final = 2**63 - 1
CHOICE_BYTES: Final = 512  # a choice of an answer without its text: ids, names, its number
CALL_BYTES: Final = 512  # a call without its arguments: ids, names
TOKEN_ID_BYTES: Final = 8  # of an answer's list of them, with a comma
LOGPROB_NAMES_BYTES: Final = 128  # of a token's log-probabilities: the names and numbers around them


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools for a chat template."""

    messages: Sequence[JsonObject]
    """Role and content, a text or a chat's parts; tool_calls, tool_call_id and name where they are given."""
    tools: Sequence[JsonObject] = ()
    ending: "Ending" = "answer"
    arguments: Mapping[str, Any] = field(default_factory=dict)  # more, for the template
    effort: str | None = None  # of thinking, of which the template may know
    media: Mapping[str, str] = field(default_factory=dict)
    """Types of the parts that are no text, by their places in the request."""


Ending = Literal["answer", "message", "open"]
"""The end of a conversation's prompt: the beginning of the answer, the last message's end, or the last
message as it is, which the answer continues.
"""


def ending_of(add_generation_prompt: bool | None, continue_final_message: bool | None) -> Ending:
    """The ending that vLLM's parameters ask for. Raises InvalidRequest."""
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            param="continue_final_message",
        )
    return "open" if continue_final_message else "message" if add_generation_prompt is False else "answer"


@dataclass(frozen=True, slots=True)
class Thinking:
    """The wishes of a request about the model's thought, which is parted from its answer."""

    effort: str | None = None  # `none`: no thought
    budget: int | None = None  # tokens, after which it is ended
    is_shown: bool = True


Prompt = Conversation | str | list[int]  # or text, or token ids


PROMPT_TOKENS_SLACK: Final = 4096
"""Tokens that a chat template or a tokenizer may add to a prompt, for a bound of their number."""


def prompt_bytes(prompt: "Prompt") -> int:
    """The bytes of its text as JSON; of token ids, their number."""
    if isinstance(prompt, Conversation):
        return 4 * prompt_chars(prompt)
    return json_bytes(prompt) if isinstance(prompt, str) else len(prompt)


def template_role(role: str) -> str:
    """The role's name in chat templates: OpenAI renamed `system` to `developer`."""
    return "system" if role == "developer" else role


MEDIA_CHARS: Final = 4096  # an image, a sound or a file counts as so much text


def prompt_chars(prompt: Prompt) -> int:
    if isinstance(prompt, Conversation):
        content = sum(_content_chars(message["content"]) for message in prompt.messages)
        more = [message[name] for message in prompt.messages for name in _LONG_PARTS if name in message]
        return content + _chars_within([*more, *prompt.tools, *prompt.arguments.values()])
    return len(prompt) if isinstance(prompt, str) else 0


def _content_chars(content: str | Sequence[JsonObject]) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part["text"]) if part["type"] == "text" else MEDIA_CHARS for part in content)


_LONG_PARTS: Final = ("tool_calls", "reasoning_content")  # of messages, beside their content


def _chars_within(parts: list[Any]) -> int:
    """The characters of all strings and names, and one for each other value, without recursion."""
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
    """An endpoint may have more."""

    include_obfuscation: Annotated[Flag, WithoutEffect("events have no padding")] = None


class GenerationRequest(ModelRequest):
    """The fields of every request for text: how to sample, when to stop."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-SEED_MAX - 1, le=SEED_MAX)] | None = None
    stop: Annotated[list[str], at_most(STOP_STRINGS_MAX), BeforeValidator(_one_or_many)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True), at_most(STOP_TOKENS_MAX)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], at_most(LOGIT_BIAS_MAX)] | None
    ) = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, fail_fast=True), at_most(ALLOWED_TOKENS_MAX)] | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: Annotated[bool, null_means(False)] = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: Annotated[str | None, WithoutEffect("there is one backend")] = None
    structured_outputs: JsonObject | None = None
    json_schema: JsonObject | str | None = None
    regex: str | None = None
    ebnf: str | None = None

    own_guidance: ClassVar[GuidanceFields] = {}
    """The endpoint's own parameters for the form of an answer."""

    _guidance: Guidance | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _read_guidance(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        guidance = guidance_of(data, cls.own_guidance) if isinstance(data, dict) else None
        request = handler(data)
        request._guidance = guidance
        return request

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: list[str] | None) -> list[str] | None:
        if value and "" in value:
            raise ValueError("a stop string cannot be empty")
        return value

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
    def guidance(self) -> Guidance | None:
        """The form of the answer; None: any text."""
        return self._guidance

    @property
    def callable_tools(self) -> Tools | None:
        """The tools that the answer may call."""
        return None

    @property
    def thinking(self) -> Thinking | None:
        """The wishes about its thought. None: that is not told from the answer."""
        return None

    @property
    @abstractmethod
    def prompts_given(self) -> Sequence[Prompt]:
        """The prompts to continue or answer: at least one."""

    @property
    def num_prompts(self) -> int:
        return 1

    @property
    def languages(self) -> Mapping[str, str]:
        """The languages of a translation, by field."""
        return {}

    @property
    def text_chars(self) -> int:
        return sum(map(prompt_chars, self.prompts_given))

    @property
    @abstractmethod
    def logprobs_asked(self) -> int | None:
        """Alternatives per token's log-probability; None: no log-probabilities."""

    @property
    def listed_token_ids(self) -> Sequence[int]:
        """The alternatives themselves, in place of the likeliest ones; empty: those."""
        return ()

    @property
    def prompt_logprobs_shown(self) -> int | None:
        """Alternatives that `prompt_logprobs` asks for."""
        return None

    @property
    def prompt_logprobs_asked(self) -> int | None:
        """Alternatives per log-probability of a prompt's token; None: prompts are not scored."""
        return self.prompt_logprobs_shown

    @property
    def is_read_only(self) -> bool:
        """Whether its prompts are read, and nothing is generated."""
        return False

    @property
    def reads_prompts(self) -> bool:
        """Whether its prompts are computed by themselves, beside what is generated after them."""
        return self.is_read_only or self.prompt_logprobs_asked is not None

    def echoed(self, prompt: int) -> str | Sequence[int]:
        """The text or the token ids that each answer to one of its prompts begins with."""
        return ""

    @property
    def shows_token_ids(self) -> bool:
        """Whether its answer has the ids of its prompts and of its choices."""
        return False

    @property
    def names_token_ids(self) -> bool:
        """Whether log-probabilities name tokens by their ids instead of their texts."""
        return False

    @property
    def logprobs_field(self) -> str:
        """The field that says how many."""
        return "top_logprobs"

    @property
    def choices_asked(self) -> Mapping[str, int]:
        """The counts whose product is `num_choices`, by field."""
        return {}

    @property
    @abstractmethod
    def output_tokens_max(self) -> int | None:
        """The most tokens to generate; None: up to the context's end."""

    @property
    @abstractmethod
    def output_limits(self) -> dict[str, int | None]:
        """The limits on generated tokens as they were given, by field."""


class CallingRequest(GenerationRequest):
    """The fields of every request whose answer may call tools."""

    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None

    _callable: Tools | None = PrivateAttr(default=None)

    @classmethod
    def read_tools(cls, data: JsonObject) -> Tools | None:
        """The tools that a body offers. Raises InvalidRequest."""
        return tools_of(data)

    @model_validator(mode="wrap")
    @classmethod
    def _read_tools(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        tools = cls.read_tools(data) if isinstance(data, dict) else None
        request = handler(data)
        form = request._guidance
        request._callable = tools if tools is None or form is None else tools.or_form(form)
        return request

    @property
    def callable_tools(self) -> Tools | None:
        return self._callable

    @property
    def tools_shown(self) -> Sequence[JsonObject]:
        """The tools that are shown to the model."""
        return self._callable.given if self._callable is not None else ()

    @property
    def guidance(self) -> Guidance | None:
        return self._callable.guidance if self._callable is not None else super().guidance


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    finish_reason: str
    logprobs: JsonObject | None = None  # in the endpoint's shape
    calls: Sequence[JsonObject] = ()  # of tools, as the API shows them
    reasoning: str = ""  # the thought before the text
    prompt_logprobs: Sequence[JsonObject | None] | None = (
        None  # of its prompt's tokens, if they are asked for
    )
    token_ids: Sequence[int] | None = None  # likewise, with those of thoughts and the end
    prompt_token_ids: Sequence[int] | None = None


class TextEndpoint(Endpoint):
    """An endpoint that a decoder serves."""

    model_kinds: Collection[ModelKind] = (ModelKind.DECODER,)
    columns: Mapping[str, ColumnType] = dict.fromkeys(
        ("text", "finish_reason", "tool_calls"), ColumnType.TEXT
    )
    prompt_field: str  # named in errors about the prompt
    id_prefix: str  # of an answer's id, such as `chatcmpl-`

    def answer_id(self, name: str) -> str:
        """The id of the answer to the request or row with this name, the same at every attempt."""
        return answer_id(self.id_prefix, name)

    def prompt_place(self, request: GenerationRequest, prompt: int) -> str:
        """The field that errors about one of a request's prompts name."""
        return self.prompt_field if request.num_prompts == 1 else f"{self.prompt_field}[{prompt}]"

    @abstractmethod
    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        """A choice's log-probabilities; each list has an entry per token."""

    @abstractmethod
    def answer(
        self,
        request: GenerationRequest,
        head: AnswerHead,
        *,
        choices: Sequence[Choice],
        usage: Usage,
    ) -> JsonObject:
        """An answer's body."""

    def result(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> Result:
        """The same as values."""
        body = self.answer(request, head, choices=choices, usage=usage)
        return Result(200, usage, self.values_of(choices[0]), body)

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, GenerationRequest), "parsed by this endpoint"
        sizes, context = model.output_sizes, model.context_length
        if sizes is None or context is None:
            return None
        alternatives = request.logprobs_asked
        shown = 0 if alternatives is None else (alternatives + 2) * sizes.logprob + LOGPROB_NAMES_BYTES
        shown += request.shows_token_ids * TOKEN_ID_BYTES
        limits = {field: count for field, count in request.output_limits.items() if count is not None}
        field = next(iter(limits or request.output_limits))
        tokens_max = context if request.output_tokens_max is None else min(request.output_tokens_max, context)
        calls_bytes = 0 if request.callable_tools is None else CALLS_MAX * CALL_BYTES
        return AnswerSize(
            sizes.token + shown,
            {**request.choices_asked, field: tokens_max},
            ANSWER_HEAD_BYTES
            + self.echoed_bytes(request)
            + _prompt_bytes(request, sizes, context)
            + request.num_choices * (CHOICE_BYTES + calls_bytes),
            _enlarging(request),
        )

    def echoed_bytes(self, request: GenerationRequest) -> int:
        """Bytes, as JSON, of the parts of a request that its answer repeats."""
        return json_bytes(request.model)

    def values_of(self, choice: Choice) -> Values:
        calls = json.dumps(choice.calls, ensure_ascii=False, separators=(",", ":")) if choice.calls else None
        values = {"text": choice.text, "finish_reason": choice.finish_reason, "tool_calls": calls}
        return values | ({REASONING: choice.reasoning or None} if REASONING in self.columns else {})

    def choice_of(self, values: Values) -> Choice:
        """The reverse of `values_of`."""
        text, reason, calls = (values[name] for name in ("text", "finish_reason", "tool_calls"))
        assert isinstance(text, str), "a choice has a text"
        assert isinstance(reason, str), "and has ended"
        reasoning = values.get(REASONING)
        assert not isinstance(reasoning, bytes), "it is a text"
        return Choice(text, reason, None, json.loads(calls) if calls else (), reasoning or "")

    @abstractmethod
    def pieces(self, answer: JsonObject) -> Sequence[Piece]:
        """The text of each choice of an answer's body."""

    def reasoning(self, answer: JsonObject) -> Sequence[str]:
        """The thought of each choice of an answer's body."""
        return [""] * len(self.pieces(answer))

    @abstractmethod
    def calls(self, answer: JsonObject) -> Sequence[Sequence[JsonObject]]:
        """The calls of each choice of an answer's body, as chats show them."""

    @abstractmethod
    def events(self, request: GenerationRequest, head: AnswerHead) -> AnswerEvents:
        """The events of a streamed answer."""


def _prompt_bytes(request: GenerationRequest, sizes: OutputSizes, context: int) -> int:
    """An upper bound of the bytes of what an answer shows of its prompts. A token is at least one byte."""
    per_prompt, alternatives = request.num_choices // request.num_prompts, request.prompt_logprobs_asked
    total = 0
    if alternatives is None and not request.echoed(0) and not request.shows_token_ids:
        return total
    for number, prompt in enumerate(request.prompts_given):
        tokens = min(prompt_bytes(prompt) + PROMPT_TOKENS_SLACK, context)
        echoed = request.echoed(number)
        total += tokens * request.shows_token_ids * TOKEN_ID_BYTES
        total += json_bytes(echoed) if isinstance(echoed, str) else len(echoed) * sizes.token
        if alternatives is not None:
            shapes = 1 if request.prompt_logprobs_shown is None or not echoed else 2
            total += shapes * tokens * ((alternatives + 2) * sizes.logprob + LOGPROB_NAMES_BYTES)
    return total * per_prompt


def _enlarging(request: GenerationRequest) -> dict[str, int | str]:
    """The fields that make an answer larger than its text, with their values."""
    counts = {
        request.logprobs_field: request.logprobs_asked,
        "prompt_logprobs": request.prompt_logprobs_shown,
    }
    flags = {"echo": request.echoed(0), "return_token_ids": request.shows_token_ids}
    said: dict[str, int | str] = {name: "true" for name, is_set in flags.items() if is_set}
    return {name: count for name, count in counts.items() if count is not None} | said
