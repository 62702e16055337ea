"""Requests to engine parameters, engine outputs to answers: for online requests and rows of bulk jobs."""

import codecs
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from nightshift.endpoints.answers import error_body
from nightshift.endpoints.requests import too_long
from nightshift.endpoints.results import Identity, Result
from nightshift.endpoints.structured.calls import AnswerReader, CallPart, New, Said, call_json, read_calls
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chance, Chosen
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.verdicts import without_addresses
from nightshift_engine import Completion, Output, RequestTimes, SamplingParams, TokenLogprobs
from nightshift_engine.errors import InvalidSamplingParams


@dataclass(frozen=True)
class SamplingDefaults:
    """Sampling parameters of a model's generation_config.json, used where a request gives none, as in vLLM.

    The default temperature is OpenAI's.
    """

    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> "SamplingDefaults":
        """`do_sample: false` means greedy, which is temperature 0 here."""
        if config.get("do_sample") is False:
            return cls(temperature=0.0, repetition_penalty=config.get("repetition_penalty"))
        known = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        return cls(**known)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of a request's choices. The first choice has the request's own, whatever `n` is.

    A seed that a request gives is that of each of its prompts: such a choice is counted within its prompt.
    """
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


T = TypeVar("T")

CHARS_PER_TOKEN_MAX = 128  # a generous bound on the average; English has about 4


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class Progress:
    """New output of a request. The last one carries the result."""

    text: str = ""
    token_ids: Sequence[int] = ()
    choice: int = 0  # whose text and tokens these are
    token_logprobs: Sequence[TokenLogprobs] = ()  # one per token, if asked for
    logprobs: JsonObject | None = None  # the same as the answer will show them
    calls: Sequence[CallPart] = ()  # of tools; their text is in no `text`
    reasoning: str = ""  # new text of the thought; it all comes before `text` and `calls`
    result: Result | None = None
    failed: str | None = None  # why another try may succeed: the engine aborted the request, say
    fault: StorageError | None = None  # why a file was not read that may be later; the result says it too
    times: RequestTimes | None = None  # of the last choice to end, with the result

    @property
    def last_result(self) -> "Result":
        """The result of a request that has ended and is not tried again."""
        return self.result or breakdown(self.failed or "aborted")


Listener = Callable[[Progress], None]


class Tokenizer(Protocol):
    """The parts of a model's tokenizer that an answer needs."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


def sampling_params(request: GenerationRequest, seed: int, defaults: SamplingDefaults) -> SamplingParams:
    """The engine's view of a request's sampling fields. Raises InvalidRequest naming the field."""
    given: dict[str, Any] = {
        "temperature": _first(request.temperature, defaults.temperature),
        "top_p": _first(request.top_p, defaults.top_p),
        "top_k": _first(request.top_k, defaults.top_k),
        "min_p": _first(request.min_p, defaults.min_p),
        "seed": _first(request.seed, seed),
        "stop": tuple(request.stop or ()),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "max_tokens": request.output_tokens_max,
        "min_tokens": request.min_tokens,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": _first(request.repetition_penalty, defaults.repetition_penalty),
        "logit_bias": request.logit_bias,
        "ignore_eos": request.ignore_eos,
        "logprobs": request.logprobs_asked,
    }
    try:
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})
    except InvalidSamplingParams as error:
        raise InvalidRequest(f"Invalid '{error.field}': {error}.", param=error.field) from error


def check_length(text_chars: int, context_length: int, param: str, advice: str = "") -> None:
    """Refuses a text that is far too long without tokenising it, which could take seconds.

    Raises InvalidRequest. A text just too long passes; the engine counts its tokens.
    """
    if text_chars > context_length * CHARS_PER_TOKEN_MAX:
        raise too_long(context_length, f"'{param}' has {text_chars} characters", param, advice)


def check_output_length(request: GenerationRequest, context_length: int) -> None:
    """Refuses to generate more tokens than the context has. What no longer fits beside a prompt ends the
    answer with `length`. Raises InvalidRequest naming the field.
    """
    for field, tokens_max in request.output_limits.items():
        if tokens_max is not None and tokens_max > context_length:
            raise too_long(context_length, f"{field} is too large: {tokens_max}", field)


def _first(given: T | None, default: T | None) -> T | None:
    return default if given is None else given


class TextAnswer:
    """Collects the outputs of all choices of one request."""

    def __init__(
        self,
        endpoint: TextEndpoint,
        request: GenerationRequest,
        identity: Identity,
        tokenizer: Tokenizer,
        priority: PriorityClass,
    ) -> None:
        self._endpoint = endpoint
        self._request = request
        self._identity = identity
        self._priority = priority
        self._choices = [_Choice(endpoint, request, tokenizer) for _ in range(request.num_choices)]

    def take(self, choice: int, output: Output) -> Progress:
        """The last choice to finish brings the result."""
        progress = self._choices[choice].take(choice, output)
        if output.is_refused:
            return replace(progress, result=refusal(self._misguided(output)), times=output.times)
        if output.finish_reason == "abort":
            return replace(progress, failed=output.error or "aborted", times=output.times)
        if all(choice.completion.is_finished for choice in self._choices):
            return replace(progress, result=self._result(), times=output.times)
        return progress

    def _misguided(self, output: Output) -> InvalidRequest:
        guidance = self._request.guidance
        param = guidance.field_at(output.error or "") if guidance is not None else None
        return InvalidRequest(f"Invalid '{param}': {output.error}.", param=param, code="invalid_value")

    def _result(self) -> Result:
        completions = [choice.completion for choice in self._choices]
        firsts = completions[:: len(completions) // self._request.num_prompts]  # choices share their prompt
        usage = Usage(
            sum(first.num_prompt_tokens for first in firsts),
            sum(len(done.token_ids) for done in completions),
            sum(first.num_cached_tokens for first in firsts),
            sum(done.num_reasoning_tokens for done in completions),
        )
        id = self._identity.id(self._endpoint.id_prefix)
        return self._endpoint.result(
            self._request,
            AnswerHead(id, self._identity.created_s, self._priority),
            choices=[choice.shown(id, index) for index, choice in enumerate(self._choices)],
            usage=usage,
        )


class _Choice:
    """A choice: its completion, and its tokens as the answer shows them."""

    def __init__(self, endpoint: TextEndpoint, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self.completion = Completion(id="")
        self._tokenizer = tokenizer
        self._shows_logprobs = request.logprobs_asked is not None
        self._in_shape = endpoint.logprobs
        self._shows_thought = request.thinking is not None and request.thinking.is_shown
        self._tools = request.callable_tools
        self._reader = AnswerReader(self._tools) if self._tools is not None else None
        self._chosen: list[Chosen] = []
        self._partial = b""  # of a character whose last bytes have not come yet
        self._num_characters = 0  # before it

    def take(self, choice: int, output: Output) -> Progress:
        num_skipped = output.num_reasoning_tokens - self.completion.num_reasoning_tokens
        self.completion.id = output.id
        self.completion.append(output)
        logprobs = output.logprobs or ()
        shown = None
        if logprobs:
            told = output.token_ids[num_skipped:], logprobs[num_skipped:]
            shown = self._show(*told, output.end_token_id)
        new = self._reader.push(output.text) if self._reader is not None else New(output.text, ())
        reasoning = output.reasoning if self._shows_thought else ""
        return Progress(new.content, output.token_ids, choice, logprobs, shown, new.parts, reasoning)

    def shown(self, answer_id: str, choice: int) -> Choice:
        done = self.completion
        logprobs = self._in_shape(self._chosen) if self._shows_logprobs else None
        said = read_calls(done.text, self._tools) if self._tools is not None else Said(done.text)
        calls = [call_json(call, answer_id, choice, index) for index, call in enumerate(said.calls)]
        reason = "tool_calls" if calls and said.calls[-1].is_whole else str(done.finish_reason)
        return Choice(said.content, reason, logprobs, calls, done.reasoning if self._shows_thought else "")

    def _show(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], end_token_id: int | None
    ) -> JsonObject | None:
        """The token that ended the answer is no part of it, nor is a thought."""
        new = [*zip(token_ids, logprobs, strict=True)]
        new = new[:-1] if end_token_id is not None else new
        chosen = [self._chosen_token(token, logprobs_of_token) for token, logprobs_of_token in new]
        self._chosen += chosen
        return self._in_shape(chosen) if chosen else None

    def _chosen_token(self, token_id: int, logprobs: TokenLogprobs) -> Chosen:
        spelled = self._tokenizer.token_bytes
        visible = b"" if self._tokenizer.is_special(token_id) else spelled(token_id)
        if visible and not _continues_character(visible):
            self._read(b"", is_last=True)  # it stays incomplete
        offset = self._num_characters
        self._read(visible)
        return Chosen(
            Chance(spelled(token_id), logprobs.logprob),
            [
                Chance(spelled(id), logprob)
                for id, logprob in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
            ],
            offset,
        )

    def _read(self, visible: bytes, *, is_last: bool = False) -> None:
        """Counts the characters that are whole now."""
        buffer = self._partial + visible
        text, num_bytes = codecs.utf_8_decode(buffer, "replace", is_last)
        self._num_characters += len(text)
        self._partial = buffer[num_bytes:]


def _continues_character(data: bytes) -> bool:
    return data[0] & 0b1100_0000 == 0b1000_0000


def refusal(error: InvalidRequest) -> Result:
    """The answer to an invalid request."""
    body = error_body(error.message, "invalid_request_error", param=error.param, code=error.code)
    return Result(404 if error.code == "model_not_found" else 400, Usage(), body=body)


def unread(error: StorageError) -> Result:
    """The answer to a request that names an image whose store does not give it at present."""
    message = f"An image cannot be read at present: {without_addresses(error.message).rstrip('.')}."
    return Result(503, Usage(), body=error_body(message, "server_error", code=error.code))


def timed_out(timeout_s: int) -> Result:
    """The answer to a row that took longer than its job allows."""
    body = error_body(
        f"The row took longer than row_timeout allows: {timeout_s} s.", "server_error", code="timed_out"
    )
    return Result(408, Usage(), body=body)


def breakdown(reason: str) -> Result:
    """The answer to a valid request that the engine failed on."""
    body: JsonObject = error_body(
        f"The model failed on this request: {reason}", "server_error", code="model_error"
    )
    return Result(500, Usage(), body=body)
