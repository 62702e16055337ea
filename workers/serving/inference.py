"""Requests to engine parameters, engine outputs to answers: for online requests and rows of bulk jobs."""

import codecs
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from nightshift.endpoints.answers import error_body
from nightshift.endpoints.requests import too_long
from nightshift.endpoints.results import Identity, Result
from nightshift.endpoints.structured.calls import AnswerReader, CallPart, New, Said, call_json, read_calls
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chance, Chosen, Ranked, by_token_id, id_name
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.verdicts import without_addresses
from nightshift_engine import Completion, Output, PromptLogprobs, RequestTimes, SamplingParams, TokenLogprobs
from nightshift_engine.errors import InvalidSamplingParams
from workers.serving.carry_over import ChoiceSoFar


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
    is_returned: bool = False  # with `failed`: it was not tried, or through no fault of its own
    breaks: int = 0  # with `is_returned`: how often its server broke it off before
    so_far: ChoiceSoFar | None = None  # all of a bulk row's only choice, where the server tells no token ids
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

    def decode_whole(self, token_ids: Sequence[int]) -> str: ...

    @property
    def bos_token_id(self) -> int | None: ...


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
        "allowed_token_ids": tuple(request.allowed_token_ids or ()),
        "logprob_token_ids": tuple(request.listed_token_ids),
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
        self._tokenizer = tokenizer
        self._prompts: list[Prompt] = []  # where they are shown or scored

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        """Is told the tokens of its prompts before the first output."""
        if self._request.reads_prompts or self._request.echoed(0) or self._request.shows_token_ids:
            self._prompts = [
                Prompt(self._request, n, prompt, self._tokenizer) for n, prompt in enumerate(prompts)
            ]
            for number, choice in enumerate(self._choices):
                choice.begin(self._prompts[number // self._per_prompt])

    @property
    def _per_prompt(self) -> int:
        return len(self._choices) // self._request.num_prompts

    def take(self, choice: int, output: Output) -> Progress:
        """The last choice to finish brings the result."""
        of_choice = self._choices[choice]
        if of_choice.is_held and output.finish_reason != "abort":
            of_choice.held.append(output)
            return Progress(choice=choice)
        progress = of_choice.take(choice, output)
        if output.is_refused:
            return replace(progress, result=refusal(self._misguided(output)), times=output.times)
        if output.finish_reason == "abort":
            return replace(progress, failed=output.error or "aborted", times=output.times)
        return replace(progress, result=self._result(), times=output.times) if self._is_whole else progress

    def take_prompt(self, prompt: int, output: Output) -> list[Progress]:
        """Takes the scores of a prompt, and what its choices held back until they are there."""
        if output.finish_reason == "abort":
            return [Progress(failed=output.error or "aborted", times=output.times)]
        self._prompts[prompt].take(output)
        first = prompt * self._per_prompt
        news: list[Progress] = []
        for number, choice in enumerate(self._choices[first : first + self._per_prompt], first):
            if (is_read := self._request.is_read_only) or choice.is_held:
                held, choice.held = choice.held, []
                news.append(choice.show_prompt(number, is_end=is_read))
                news += [self.take(number, later) for later in held]
        if self._is_whole and not any(progress.result for progress in news):
            news.append(Progress(result=self._result(), times=output.times))
        return news

    @property
    def _is_whole(self) -> bool:
        return all(choice.completion.is_finished for choice in self._choices) and all(
            prompt.is_whole for prompt in self._prompts
        )

    def _misguided(self, output: Output) -> InvalidRequest:
        guidance = self._request.guidance
        param = guidance.field_at(output.error or "") if guidance is not None else None
        return InvalidRequest(f"Invalid '{param}': {output.error}.", param=param, code="invalid_value")

    def _result(self) -> Result:
        completions = [choice.completion for choice in self._choices]
        firsts: Sequence[Output | Completion] = completions[:: self._per_prompt]  # choices share their prompt
        if self._request.reads_prompts:
            firsts = [prompt.output for prompt in self._prompts if prompt.output is not None]
        usage = Usage(
            sum(first.num_prompt_tokens for first in firsts),
            sum(len(done.token_ids) for done in completions),
            sum(first.num_cached_tokens for first in firsts),
            sum(done.num_reasoning_tokens for done in completions),
        )
        id = self._endpoint.answer_id(self._identity.name)
        return self._endpoint.result(
            self._request,
            AnswerHead(id, self._identity.created_s, self._priority),
            choices=[choice.shown(id, index) for index, choice in enumerate(self._choices)],
            usage=usage,
        )


class Prompt:
    """A prompt that answers show: its text, and the log-probabilities of its tokens.

    Special tokens are text where token ids are echoed, other than one that only begins a prompt: its first
    `num_silent` tokens have them silent.
    """

    def __init__(
        self, request: GenerationRequest, number: int, token_ids: Sequence[int], tokenizer: Tokenizer
    ) -> None:
        echoed = request.echoed(number)
        is_text = isinstance(echoed, str)
        begins = bool(token_ids) and token_ids[0] == tokenizer.bos_token_id
        self.num_silent = len(token_ids) if is_text else int(begins)
        self.text = echoed if isinstance(echoed, str) else tokenizer.decode_whole(echoed[begins:])
        self.is_echoed = bool(echoed)
        self.output: Output | None = None
        self._is_read = request.reads_prompts
        self._num_shown = request.prompt_logprobs_shown
        self.token_ids = token_ids
        self._spelled = tokenizer.token_bytes

    def take(self, output: Output) -> None:
        self.output = output

    @property
    def is_whole(self) -> bool:
        return self.output is not None or not self._is_read

    def tokens(self, num_top: int) -> Iterator[tuple[int, TokenLogprobs | None]]:
        """The prompt's tokens with `num_top` alternatives each; nothing is known of the first."""
        for token_id, scored in zip(self.token_ids, self._scores, strict=True):
            known = scored and TokenLogprobs(
                scored.logprob, scored.top_ids[:num_top], scored.top_logprobs[:num_top]
            )
            yield token_id, known

    @property
    def shown(self) -> Sequence[JsonObject | None] | None:
        """The answer to `prompt_logprobs`; None: the request does not ask."""
        if self._num_shown is None:
            return None
        return [
            None if scored is None else by_token_id([*self._ranked(token_id, scored, self._num_shown)])
            for token_id, scored in zip(self.token_ids, self._scores, strict=True)
        ]

    @property
    def _scores(self) -> list[PromptLogprobs | None]:
        assert self.output is not None, "it is whole"
        return [None, *(self.output.prompt_logprobs or ())]

    def _ranked(self, token_id: int, scored: PromptLogprobs, num_top: int) -> Iterator[Ranked]:
        yield Ranked(token_id, Chance(self._spelled(token_id), scored.logprob), scored.rank)
        top = zip(scored.top_ids[:num_top], scored.top_logprobs[:num_top], strict=True)
        for rank, (id, logprob) in enumerate(top, 1):
            if id != token_id:
                yield Ranked(id, Chance(self._spelled(id), logprob), rank)


class _Choice:
    """A choice: its completion, and its tokens as the answer shows them."""

    def __init__(self, endpoint: TextEndpoint, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self.completion = Completion(id="")
        self._tokenizer = tokenizer
        self._num_alternatives = request.logprobs_asked or 0
        self._shows_logprobs = request.logprobs_asked is not None
        self._is_listed = bool(request.listed_token_ids)
        self._shows_ids = request.shows_token_ids
        self._names_ids = request.names_token_ids
        self._in_shape = endpoint.logprobs
        self._shows_thought = request.thinking is not None and request.thinking.is_shown
        self._tools = request.callable_tools
        self._reader = AnswerReader(self._tools) if self._tools is not None else None
        self._chosen: list[Chosen] = []
        self._partial = b""  # of a character whose last bytes have not come yet
        self._num_characters = 0  # before it
        self._prompt: Prompt | None = None
        self._has_shown_prompt = False
        self.held: list[Output] = []  # until its prompt's log-probabilities are there, which come first

    def begin(self, prompt: "Prompt") -> None:
        self._prompt = prompt

    @property
    def is_held(self) -> bool:
        prompt = self._prompt
        shows_scores = self._shows_logprobs and prompt is not None and prompt.is_echoed
        return shows_scores and not self._has_shown_prompt

    def show_prompt(self, choice: int, *, is_end: bool = False) -> Progress:
        """The beginning of an answer that repeats its prompt; with `is_end` it is all there is."""
        assert self._prompt is not None, "it was begun with"
        if is_end:
            self.completion.finish_reason = "length"
        self._has_shown_prompt = True
        logprobs = None
        if self._shows_logprobs and self._prompt.is_echoed:
            count = self._num_alternatives
            silent = self._prompt.num_silent
            tokens = enumerate(self._prompt.tokens(count))
            chosen = [self._chosen_token(*token, is_text=place >= silent) for place, token in tokens]
            self._chosen += chosen
            logprobs = self._in_shape(chosen)
        self._partial, self._num_characters = b"", len(self._prompt.text)
        return Progress(self._prompt.text, choice=choice, logprobs=logprobs)

    def take(self, choice: int, output: Output) -> Progress:
        num_skipped = output.num_reasoning_tokens - self.completion.num_reasoning_tokens
        echo = ""
        if self._prompt is not None and not self._has_shown_prompt:
            echo = self.show_prompt(choice).text
        self.completion.id = output.id
        self.completion.append(output)
        logprobs = output.logprobs or ()
        shown = None
        if logprobs:
            told = output.token_ids[num_skipped:], logprobs[num_skipped:]
            shown = self._show(*told, output.end_token_id)
        new = self._reader.push(output.text) if self._reader is not None else New(output.text, ())
        reasoning = output.reasoning if self._shows_thought else ""
        content = echo + new.content
        return Progress(content, output.token_ids, choice, logprobs, shown, new.parts, reasoning)

    def shown(self, answer_id: str, choice: int) -> Choice:
        done = self.completion
        logprobs = self._in_shape(self._chosen) if self._shows_logprobs else None
        said = read_calls(done.text, self._tools) if self._tools is not None else Said(done.text)
        calls = [call_json(call, answer_id, choice, index) for index, call in enumerate(said.calls)]
        reason = "tool_calls" if calls and said.calls[-1].is_whole else str(done.finish_reason)
        reasoning = done.reasoning if self._shows_thought else ""
        if self._prompt is None:
            return Choice(said.content, reason, logprobs, calls, reasoning)
        echoed = self._prompt.text + said.content
        ids = (done.token_ids, self._prompt.token_ids) if self._shows_ids else ()
        return Choice(echoed, reason, logprobs, calls, reasoning, self._prompt.shown, *ids)

    def _show(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], end_token_id: int | None
    ) -> JsonObject | None:
        """The token that ended the answer is no part of it, nor is a thought."""
        new = [*zip(token_ids, logprobs, strict=True)]
        new = new[:-1] if end_token_id is not None else new
        chosen = [self._chosen_token(token, logprobs_of_token) for token, logprobs_of_token in new]
        self._chosen += chosen
        return self._in_shape(chosen) if chosen else None

    def _chosen_token(
        self, token_id: int, logprobs: TokenLogprobs | None, *, is_text: bool = False
    ) -> Chosen:
        """The token as the answer shows it; `is_text`: also a special one leaves text."""
        named = id_name if self._names_ids else self._tokenizer.token_bytes
        is_silent = self._tokenizer.is_special(token_id) and not is_text
        visible = b"" if is_silent else self._tokenizer.token_bytes(token_id)
        if visible and not _continues_character(visible):
            self._read(b"", is_last=True)  # it stays incomplete
        offset = self._num_characters
        self._read(visible)
        if logprobs is None:
            return Chosen(Chance(named(token_id), None), (), offset)
        chance = Chance(named(token_id), logprobs.logprob)
        is_missing = self._is_listed and token_id not in logprobs.top_ids
        top = [
            Chance(named(id), logprob)
            for id, logprob in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
        ]
        return Chosen(chance, [chance, *top] if is_missing else top, offset)

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
