"""The base of endpoints whose answers are lists of choices: their requests, answers and chunks."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from nightshift.endpoints.answers import answer_usage
from nightshift.endpoints.parameters import Flag, WithoutEffect
from nightshift.endpoints.requests import Count, TokenId, at_most, invalid_value, null_means
from nightshift.endpoints.results import Origin, Result, Values
from nightshift.endpoints.structured.calls import call_id
from nightshift.endpoints.structured.guidance import GuidanceFields, read_format
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, StreamOptions, TextEndpoint
from nightshift.endpoints.texts.logprobs import ALTERNATIVES_MAX
from nightshift.endpoints.texts.streams import AnswerEvents, AnswerHead, CallPiece, Piece, StreamEvent
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass

CHOICES_MAX: Final = 128  # of a request
LISTED_TOKENS_MAX: Final = 128
DONE: Final = StreamEvent("[DONE]")


class ChunkOptions(StreamOptions):
    include_usage: bool = False
    continuous_usage_stats: Annotated[Flag, WithoutEffect("tokens are counted once, at the end")] = None


class ChoicesRequest(GenerationRequest):
    """The number of choices and their lengths."""

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX, strict=True)] | None = None
    echo: Annotated[bool, null_means(False)] = False
    logprob_token_ids: Annotated[list[TokenId], Field(fail_fast=True), at_most(LISTED_TOKENS_MAX)] | None = (
        None
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=ALTERNATIVES_MAX, strict=True)] | None = None
    return_token_ids: Annotated[bool, null_means(False)] = False
    return_tokens_as_token_ids: Annotated[bool, null_means(False)] = False
    response_format: JsonObject | None = None
    stream_options: ChunkOptions | None = None

    own_guidance: ClassVar[GuidanceFields] = {"response_format": partial(read_format, nested="json_schema")}

    @model_validator(mode="after")
    def _come_whole(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            name = "prompt_logprobs"
            raise InvalidRequest(f"'{name}' is not available when 'stream' is enabled.", param=name)
        if self.listed_token_ids and (self.logprobs_asked is None or self.echo):
            raise invalid_value("logprob_token_ids", "'logprobs' must be set to use it, and 'echo' must not")
        return self

    @property
    def listed_token_ids(self) -> Sequence[int]:
        return [*dict.fromkeys(self.logprob_token_ids or ())]

    @property
    def logprobs_field(self) -> str:
        return "logprob_token_ids" if self.listed_token_ids else super().logprobs_field

    @property
    def prompt_logprobs_shown(self) -> int | None:
        return self.prompt_logprobs

    @property
    def shows_token_ids(self) -> bool:
        return self.return_token_ids

    @property
    def names_token_ids(self) -> bool:
        return self.return_tokens_as_token_ids

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_choices(self) -> int:
        """The number of choices, of which those of the first prompt come first."""
        return (self.n or 1) * self.num_prompts

    @property
    def choices_asked(self) -> dict[str, int]:
        return {"n": self.n or 1}

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_tokens

    @property
    def output_limits(self) -> dict[str, int | None]:
        return {"max_tokens": self.max_tokens}


class ChoicesEndpoint(TextEndpoint):
    """An endpoint whose answers are lists of choices."""

    has_logprobs_in_every_chunk: bool = False  # if any: no chunk has a finish reason alone
    object_name: str  # an answer's `object`, such as `chat.completion`
    chunk_object_name: str  # a chunk's `object`, such as `chat.completion.chunk`

    @abstractmethod
    def choice_json(self, choice: Choice) -> JsonObject:
        """A choice's fields, without its number, log-probabilities and finish reason."""

    @abstractmethod
    def choice_text(self, choice: JsonObject) -> str:
        """A choice's text, the reverse of `choice_json`."""

    @abstractmethod
    def chunk_opening(self, *, may_call: bool) -> JsonObject | None:
        """A streamed choice's fields before any text, of an answer that may call tools or not; None: it
        begins with text.
        """

    @abstractmethod
    def chunk_delta(self, text: str) -> JsonObject:
        """A streamed choice's fields for new text."""

    def choice_reasoning(self, choice: JsonObject) -> str:
        """A choice's thought, likewise."""
        return ""

    def chunk_reasoning(self, text: str) -> Sequence[JsonObject]:
        """A streamed choice's fields for new text of its thought, one chunk each."""
        return ()

    @abstractmethod
    def chunk_closing(self) -> JsonObject:
        """A streamed choice's last fields."""

    def chunk_call(self, piece: CallPiece, id: str) -> Sequence[JsonObject]:
        """A streamed choice's fields for new arguments of a call, one chunk each."""
        return ()

    def answer_extras(self, priority: PriorityClass) -> JsonObject:
        """An answer's further fields."""
        return {}

    def chunk_extras(self) -> JsonObject:
        """A chunk's further fields."""
        return {}

    def answer(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> JsonObject:
        return self._body(head, request.model, choices, usage)

    def _body(self, head: AnswerHead, model: str, choices: Sequence[Choice], usage: Usage) -> JsonObject:
        return {
            "id": head.id,
            "object": self.object_name,
            "created": head.created_s,
            "model": model,
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
            **self.answer_extras(head.priority),
        }

    def pieces(self, answer: JsonObject) -> list[Piece]:
        return [Piece(self.choice_text(choice), choice["logprobs"]) for choice in answer["choices"]]

    def reasoning(self, answer: JsonObject) -> list[str]:
        return [*map(self.choice_reasoning, answer["choices"])]

    def calls(self, answer: JsonObject) -> list[Sequence[JsonObject]]:
        return [() for _ in answer["choices"]]

    def events(self, request: GenerationRequest, head: AnswerHead) -> AnswerEvents:
        assert isinstance(request, ChoicesRequest), "parsed by this endpoint"
        return Chunks(self, request, head)

    def result(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> Result:
        first = choices[0]
        more = (first.logprobs, first.prompt_logprobs, first.token_ids)
        says_all = len(choices) == 1 and all(part is None for part in more)
        body = None if says_all else self.answer(request, head, choices=choices, usage=usage)
        return Result(200, usage, self.values_of(choices[0]), body)

    def values(self, body: JsonObject) -> Values:
        choices = body.get("choices")
        if not choices:
            return dict.fromkeys(self.columns)
        first = choices[0]
        calls = first.get("message", {}).get("tool_calls", ())
        text, reasoning = self.choice_text(first), self.choice_reasoning(first)
        return self.values_of(Choice(text, first.get("finish_reason", ""), None, calls, reasoning))

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        head = AnswerHead(origin.identity.id(self.id_prefix), origin.identity.created_s, origin.priority)
        return self._body(head, origin.model, [self.choice_of(values)], usage)


def asked_for(choice: Choice, *names: str) -> JsonObject:
    """The fields of a choice that its request asks for."""
    return {name: value for name in names if (value := getattr(choice, name)) is not None}


@dataclass(frozen=True)
class Chunks(AnswerEvents):
    """A streamed answer as chunks, each with a part of one choice."""

    endpoint: ChoicesEndpoint
    request: ChoicesRequest
    head: AnswerHead
    _held: dict[int, Piece] = field(default_factory=dict)  # the last piece of each choice, where it is held

    def opening(self) -> Sequence[StreamEvent]:
        """One for each choice or none."""
        says = self.endpoint.chunk_opening(may_call=self.request.callable_tools is not None)
        return [] if says is None else [self._choice(n, says) for n in range(self.request.num_choices)]

    def piece(self, choice: int, piece: Piece) -> Sequence[StreamEvent]:
        if not self._holds_last:
            return [self._piece(choice, piece)]
        held = self._held.get(choice, Piece(""))
        if held.logprobs is None or piece.logprobs is None:
            self._held[choice] = Piece(held.text + piece.text, held.logprobs or piece.logprobs)
            return []
        self._held[choice] = piece
        return [self._piece(choice, held)]

    def reasoning(self, choice: int, text: str) -> Sequence[StreamEvent]:
        return [self._choice(choice, says) for says in self.endpoint.chunk_reasoning(text)]

    @property
    def _holds_last(self) -> bool:
        """Whether each piece waits for the next one, so that the last has the finish reason."""
        return self.endpoint.has_logprobs_in_every_chunk and self.request.logprobs_asked is not None

    def call_piece(self, choice: int, piece: CallPiece) -> Sequence[StreamEvent]:
        id = piece.id or call_id(self.head.id, choice, piece.index)
        return [self._choice(choice, says) for says in self.endpoint.chunk_call(piece, id)]

    def closing(self, choice: int, answer: JsonObject) -> Sequence[StreamEvent]:
        """The finish reason, and the token ids where they are shown."""
        given, wished = answer["choices"][choice], ("token_ids", "prompt_token_ids")
        ids = {name: given[name] for name in wished if name in given}
        shared = {name: answer[name] for name in wished if name in answer and choice == 0}
        reason, held = given["finish_reason"], self._held.pop(choice, Piece(""))
        says = (self.endpoint.chunk_delta(held.text) if held else self.endpoint.chunk_closing()) | ids
        return [self._choice(choice, says, shared, logprobs=held.logprobs, finish_reason=reason)]

    def ending(self, answer: JsonObject) -> Sequence[StreamEvent]:
        """The end of the stream, with `include_usage` after token counts without choices."""
        usage = [StreamEvent.from_json(self._chunk([]) | {"usage": answer["usage"]})]
        return [*(usage if self.request.include_usage else ()), DONE]

    def failed(self, error: JsonObject) -> Sequence[StreamEvent]:
        return [StreamEvent.from_json({"error": error["error"]})]

    def interrupted(self, error: JsonObject) -> Sequence[StreamEvent]:
        return self.failed(error)

    def _piece(self, choice: int, piece: Piece) -> StreamEvent:
        return self._choice(choice, self.endpoint.chunk_delta(piece.text), logprobs=piece.logprobs)

    def _choice(
        self,
        index: int,
        says: JsonObject,
        beside: JsonObject | None = None,
        *,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
    ) -> StreamEvent:
        ids: JsonObject = {"token_ids": []} if self.request.shows_token_ids else {}
        choice = {"index": index, **ids, **says, "logprobs": logprobs, "finish_reason": finish_reason}
        return StreamEvent.from_json(self._chunk([choice]) | (beside or {}))

    def _chunk(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.head.id,
            "object": self.endpoint.chunk_object_name,
            "created": self.head.created_s,
            "model": self.request.model,
            "choices": choices,
            **self.endpoint.chunk_extras(),
        }
