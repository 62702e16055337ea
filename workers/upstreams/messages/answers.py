"""An upstream's answers as ours: our ids, times and names around what it said. Pure.

The shapes are OpenAI's and, beyond them, vLLM's (`reasoning_content`, `reasoning`, `token_ids`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from nightshift.endpoints.results import Result
from nightshift.endpoints.structured.calls import Call, CallPart, call_json
from nightshift.endpoints.structured.tools import CALLS_MAX
from nightshift.endpoints.texts.chat import TEXTS
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.jobs import JsonObject, Usage
from workers.serving.carry_over import ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import Inference
from workers.upstreams.faults import BrokenOff, RowRefused, check_success, parsed
from workers.upstreams.messages.encoder_answers import encoder_result

TOKENS_MAX: Final = 2**31 - 1  # more in a usage is none
ONE_TOKEN: Final = (0,)  # of a streamed part whose tokens are not told: it counts as one
FILTERED: Final = "content_filter"
REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("length", "max_tokens", "max_length", "model_length"), "length"),
    **dict.fromkeys((FILTERED, "safety", "recitation", "refusal", "sensitive"), FILTERED),
}
"""OpenAI's finish reasons for those of other servers; the others are an answer's own end, or its calls."""
FAILURES: Final = ("abort", "error", "insufficient_system_resource", "network_error")
"""Finish reasons of an answer that the server gave up."""


class NoAnswer(BrokenOff):
    """An upstream's success that holds no answer."""

    def __init__(self, lacks: str) -> None:
        super().__init__(f"answers what is no answer: {lacks}")


def read_answer(inference: Inference, data: bytes) -> Result:
    """The result of a whole answer. Raises NoAnswer."""
    body = _object(data)
    with _reading():
        if isinstance(inference.endpoint, TextEndpoint):
            return _text_result(inference, _choices(body, inference), usage_of(body))
        return encoder_result(inference, body, usage_of(body))


@contextmanager
def _reading() -> Iterator[None]:
    """Raises NoAnswer where an answer is not as it should be."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise NoAnswer(f"{type(error).__name__} {error}") from error


def usage_of(body: JsonObject) -> Usage:
    """The token counts that an answer tells; 0 for those that it does not, or that are none."""
    usage = body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt_details, details = (
        told if isinstance(told := counts.get(name), dict) else {}
        for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    return Usage(
        _count(counts.get("prompt_tokens", counts.get("total_tokens"))),
        _count(counts.get("completion_tokens")),
        _count(prompt_details.get("cached_tokens")),
        _count(details.get("reasoning_tokens")),
    )


@dataclass
class Spoken:
    """A choice as far as it has come."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    is_refusal: bool = False
    calls: list[Call] = field(default_factory=list)
    logprobs: JsonObject | None = None
    prompt_logprobs: Sequence[JsonObject | None] | None = None
    token_ids: list[int] | None = None  # None: they are not told
    prompt_token_ids: Sequence[int] | None = None

    @property
    def reason(self) -> str:
        """The finish reason. Raises NoAnswer for an answer that the upstream gave up."""
        said = str(self.finish_reason or "stop").lower()
        if said in FAILURES:
            raise NoAnswer(f"it ended with {said!r}")
        own = "tool_calls" if self.calls else "stop"
        return FILTERED if self.is_refusal else REASONS.get(said, own)


class StreamedAnswer:
    """Collects the chunks of one request's stream, and of those that continue it."""

    def __init__(self, inference: Inference, so_far: ChoiceSoFar | None = None) -> None:
        """`so_far`: the only choice, as far as an earlier stream brought it."""
        request = inference.request
        assert isinstance(request, GenerationRequest), "only text is streamed"
        self._inference = inference
        self._tokens_max = TOKENS_MAX if request.output_tokens_max is None else request.output_tokens_max
        self._spoken = [Spoken() for _ in range(request.num_choices)]
        self._usage: JsonObject = {}
        self._tokens = self._tokens_before = 0  # of all streams, and of those before this one
        self._kept = ("", 0)  # text of the only choice, and its tokens, from which it can be continued
        self._told_chars = 0  # of this stream's text, which an earlier one had told
        if so_far is not None:
            self._kept = (so_far.text, so_far.tokens_without_ids)
            self.resume()

    @property
    def so_far(self) -> ChoiceSoFar:
        """The only choice, up to where it can be continued: where a template that strips messages leaves it
        alone, before the last token that it may have, and without a thought. On any thread.
        """
        text, tokens = self._kept
        return ChoiceSoFar(text=text, tokens_without_ids=tokens)

    def resume(self) -> None:
        """Begins the stream that continues `so_far`. No text is told twice."""
        text, tokens = self._kept
        self._told_chars += max(0, len(self._spoken[0].text) - len(text))
        self._spoken, self._usage = [Spoken(text)], {}
        self._tokens = self._tokens_before = tokens

    def take(self, chunk: JsonObject) -> Iterator[Progress]:
        """The news of a chunk, for a client. Raises NoAnswer."""
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk
        with _reading():
            for choice in chunk.get("choices") or ():
                yield from self._take_choice({"prompt_token_ids": chunk.get("prompt_token_ids")} | choice)

    @property
    def is_whole(self) -> bool:
        return all(spoken.finish_reason is not None for spoken in self._spoken)

    def result(self) -> Result:
        """The result, once it is whole. Tokens that were continued are not the prompt's, but the answer's."""
        usage, before = usage_of(self._usage), self._tokens_before
        prompt_tokens = max(0, usage.prompt_tokens - before)
        usage = replace(
            usage,
            prompt_tokens=prompt_tokens,
            completion_tokens=before + usage.completion_tokens,
            cached_tokens=min(usage.cached_tokens, prompt_tokens),
        )
        with _reading():
            return _text_result(self._inference, self._spoken, usage)

    def _take_choice(self, choice: JsonObject) -> Iterator[Progress]:
        index = choice.get("index", 0)
        spoken = self._spoken[index]
        delta = choice.get("delta")
        said = {"content": choice.get("text")} if delta is None else delta
        text, reasoning = _content_of(said), _reasoning_of(said)
        spoken.finish_reason = choice.get("finish_reason") or spoken.finish_reason
        spoken.is_refusal |= bool(said.get("refusal"))
        logprobs = _logprobs_of(self._inference, choice)
        spoken.logprobs = _joined(spoken.logprobs, logprobs)
        spoken.text += text
        spoken.reasoning += reasoning
        parts = [_call_part(spoken, call) for call in said.get("tool_calls") or ()]
        if told_ids := choice.get("token_ids"):
            spoken.token_ids = spoken.token_ids or []
            spoken.token_ids += told_ids
        spoken.prompt_token_ids = spoken.prompt_token_ids or choice.get("prompt_token_ids")
        tokens = choice.get("token_ids") or (ONE_TOKEN if text or reasoning or parts or logprobs else ())
        self._tokens += len(tokens)
        if text and not text[-1].isspace() and not spoken.reasoning and self._tokens < self._tokens_max:
            self._kept = (spoken.text, self._tokens)
        told = min(self._told_chars, len(text))
        self._told_chars -= told
        if tokens and self._inference.is_streamed:
            thought = reasoning if reasoning and _shows_thought(self._inference) else ""
            yield Progress(text[told:], tokens, index, logprobs=logprobs, calls=parts, reasoning=thought)


def _text_result(inference: Inference, spoken: Sequence[Spoken], usage: Usage) -> Result:
    endpoint, request, identity = inference.endpoint, inference.request, inference.identity
    assert isinstance(endpoint, TextEndpoint), "it answers with text"
    assert isinstance(request, GenerationRequest), "parsed by this endpoint"
    if len(spoken) != request.num_choices:
        said = f"The upstream answers with {len(spoken)} choices, not with {request.num_choices}."
        raise RowRefused(400, said, "n", "unsupported_parameter")
    if request.shows_token_ids and any(one.token_ids is None for one in spoken):
        said = "The upstream tells no token ids."
        raise RowRefused(400, said, "return_token_ids", "unsupported_parameter")
    id = endpoint.answer_id(identity.name)
    choices = [
        Choice(
            one.text,
            one.reason,
            one.logprobs,
            [call_json(call, id, number, index) for index, call in enumerate(one.calls)],
            one.reasoning if _shows_thought(inference) else "",
            one.prompt_logprobs,
            *((one.token_ids, one.prompt_token_ids) if request.shows_token_ids else ()),
        )
        for number, one in enumerate(spoken)
    ]
    head = AnswerHead(id, identity.created_s, inference.priority)
    return endpoint.result(request, head, choices=choices, usage=usage)


def _choices(body: JsonObject, inference: Inference) -> list[Spoken]:
    choices = body.get("choices")
    if choices == [] and "id" in body:  # nothing passed a filter
        return [Spoken(finish_reason=FILTERED)] * inference.request.num_choices
    if not isinstance(choices, list) or not choices:
        raise NoAnswer("it has no choices")
    in_order = sorted(choices, key=lambda choice: choice.get("index", 0))
    beside = {name: body.get(name) for name in ("prompt_logprobs", "prompt_token_ids")}  # vLLM's of a chat
    return [_spoken(beside | choice, inference) for choice in in_order]


def _spoken(choice: JsonObject, inference: Inference) -> Spoken:
    message = choice["message"] if "message" in choice else {"content": choice["text"]}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return Spoken(
        _content_of(message),
        _reasoning_of(message),
        choice.get("finish_reason"),
        bool(message.get("refusal")),
        [Call(function["name"], is_whole=True, pieces=[_arguments(function)]) for function in functions],
        _logprobs_of(inference, choice),
        choice["prompt_logprobs"],
        choice.get("token_ids"),
        choice["prompt_token_ids"],
    )


def _call_part(spoken: Spoken, delta: JsonObject) -> CallPart:
    """New text of a call. A call begins with its name, and its arguments follow."""
    function = delta.get("function") or {}
    index = delta.get("index")
    if index is None:  # Gemini's: calls come whole
        index = len(spoken.calls) - (not function.get("name"))
    if not 0 <= index < CALLS_MAX:
        raise IndexError(f"call {index}")
    while len(spoken.calls) <= index:
        spoken.calls.append(Call(""))
    call, text = spoken.calls[index], _arguments(function)
    call.name = call.name or function.get("name") or ""
    after = spoken.calls[index - 1].num_chars if index else len(spoken.text)
    part = CallPart(index, call.name, after, call.num_chars, text)
    call.add(text)
    return part


def _arguments(function: JsonObject) -> str:
    """JSON; some servers give an object."""
    given = function.get("arguments") or ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _content_of(message: JsonObject) -> str:
    """The text of a message, whole or in parts, or the reason why the model refuses to answer."""
    given = message.get("content") or message.get("refusal") or ""
    if isinstance(given, list):  # Mistral's
        return "".join(part["text"] for part in given if part["type"] in TEXTS)
    if not isinstance(given, str):
        raise TypeError("its content is no text")
    return given


def _logprobs_of(inference: Inference, choice: JsonObject) -> JsonObject | None:
    """A choice's log-probabilities where they are asked for; OpenAI's of a refusal have no content."""
    request = inference.request
    given: JsonObject | None = choice.get("logprobs")
    if not given or not isinstance(request, GenerationRequest) or request.logprobs_asked is None:
        return None
    return given | {"content": given["content"] or []} if "content" in given else given


def _joined(so_far: JsonObject | None, new: JsonObject | None) -> JsonObject | None:
    """Log-probabilities of tokens, and of those after them."""
    if not new:
        return so_far
    if so_far is None:
        return {name: [*value] if isinstance(value, list) else value for name, value in new.items()}
    for name, value in new.items():
        if isinstance(value, list):
            if not isinstance(so_far.get(name), list):
                so_far[name] = []
            so_far[name] += value
    return so_far


def _shows_thought(inference: Inference) -> bool:
    thinking = getattr(inference.request, "thinking", None)
    return thinking is None or bool(thinking.is_shown)


def _reasoning_of(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, list):  # Mistral's
        thoughts = [part["thinking"] for part in content if part["type"] == "thinking"]
        return "".join(_content_of({"content": thought}) for thought in thoughts)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


def _object(data: bytes) -> JsonObject:
    body = parsed(data)
    if not isinstance(body, dict):
        raise NoAnswer("it is no JSON object")
    check_success(body)
    return body


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX else 0
