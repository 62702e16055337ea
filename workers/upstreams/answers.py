"""An upstream's answers as ours: our ids, times and names around what it said. Pure.

The shapes are OpenAI's and, beyond them, vLLM's (`reasoning_content`, `reasoning`, `token_ids`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nightshift.endpoints import Endpoint
from nightshift.endpoints.results import TRUNCATED, Result
from nightshift.endpoints.structured.calls import Call, CallPart, call_json
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.jobs import JsonObject, Usage
from workers.serving.carry_over import ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import Inference
from workers.upstreams.faults import BrokenOff

TOKENS_MAX: Final = 2**31 - 1  # more in a usage is none
ONE_TOKEN: Final = (0,)  # of a streamed part whose tokens are not told: it counts as one


class NoAnswer(BrokenOff):
    """An upstream's success that holds no answer."""

    def __init__(self, lacks: str) -> None:
        super().__init__(f"answers what is no answer: {lacks}")


def read_answer(inference: Inference, data: bytes) -> Result:
    """The result of a whole answer. Raises NoAnswer."""
    body = _object(data)
    try:
        if isinstance(inference.endpoint, TextEndpoint):
            return _text_result(inference, [*map(_spoken, _choices(body))], usage_of(body))
        return _values_result(inference, body)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
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
    calls: list[Call] = field(default_factory=list)
    logprobs: JsonObject | None = None
    prompt_logprobs: Sequence[JsonObject | None] | None = None


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
        try:
            for choice in chunk.get("choices") or ():
                yield from self._take_choice(choice)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise NoAnswer(f"{type(error).__name__} {error}") from error

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
        return _text_result(self._inference, self._spoken, usage)

    def _take_choice(self, choice: JsonObject) -> Iterator[Progress]:
        index = choice["index"]
        spoken = self._spoken[index]
        delta = choice.get("delta")
        said = {"content": choice.get("text")} if delta is None else delta
        text, reasoning = said.get("content") or "", _reasoning_of(said)
        spoken.finish_reason = choice.get("finish_reason") or spoken.finish_reason
        logprobs = choice.get("logprobs")
        spoken.logprobs = _joined(spoken.logprobs, logprobs)
        spoken.text += text
        spoken.reasoning += reasoning
        parts = [_call_part(spoken, call) for call in said.get("tool_calls") or ()]
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
        raise NoAnswer(f"{len(spoken)} choices in place of {request.num_choices}")
    id = endpoint.answer_id(identity.name)
    choices = [
        Choice(
            one.text,
            one.finish_reason or "stop",
            one.logprobs,
            [call_json(call, id, number, index) for index, call in enumerate(one.calls)],
            one.reasoning if _shows_thought(inference) else "",
            one.prompt_logprobs,
        )
        for number, one in enumerate(spoken)
    ]
    head = AnswerHead(id, identity.created_s, inference.priority)
    return endpoint.result(request, head, choices=choices, usage=usage)


def _values_result(inference: Inference, body: JsonObject) -> Result:
    """An answer with numbers; its body is kept where its values do not say it all."""
    endpoint: Endpoint = inference.endpoint
    values = endpoint.values(body)
    if not any(value is not None for value in values.values()) and not _rows_of(body):
        raise NoAnswer("it has no data")
    says_all = all(value is not None for name, value in values.items() if name != TRUNCATED)
    if says_all and (inference.body or {}).get("encoding_format") != "base64":
        return Result(200, usage_of(body), values)
    body["model"] = inference.request.model
    if "created" in body:
        body["created"] = inference.identity.created_s
    return Result(200, usage_of(body), values, body)


def _rows_of(body: JsonObject) -> Any:
    return body.get("data") or body.get("results")


def _choices(body: JsonObject) -> Sequence[JsonObject]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise NoAnswer("it has no choices")
    return sorted(choices, key=lambda choice: choice.get("index", 0))


def _spoken(choice: JsonObject) -> Spoken:
    message = choice["message"] if "message" in choice else {"content": choice["text"]}
    calls = [
        Call(function["name"], is_whole=True, pieces=[function["arguments"]])
        for function in (call["function"] for call in message.get("tool_calls") or ())
    ]
    return Spoken(
        message.get("content") or "",
        _reasoning_of(message),
        choice.get("finish_reason"),
        calls,
        choice.get("logprobs"),
        choice.get("prompt_logprobs"),
    )


def _call_part(spoken: Spoken, delta: JsonObject) -> CallPart:
    """New text of a call. A call begins with its name, and its arguments follow."""
    index, function = delta["index"], delta.get("function") or {}
    while len(spoken.calls) <= index:
        spoken.calls.append(Call(""))
    call, text = spoken.calls[index], function.get("arguments") or ""
    call.name = call.name or function.get("name") or ""
    after = spoken.calls[index - 1].num_chars if index else len(spoken.text)
    part = CallPart(index, call.name, after, call.num_chars, text)
    call.add(text)
    return part


def _joined(so_far: JsonObject | None, new: JsonObject | None) -> JsonObject | None:
    """Log-probabilities of tokens, and of those after them."""
    if not new:
        return so_far
    if so_far is None:
        return {name: [*value] if isinstance(value, list) else value for name, value in new.items()}
    for name, value in new.items():
        if isinstance(value, list):
            so_far[name] = [*(so_far.get(name) or ()), *value]
    return so_far


def _shows_thought(inference: Inference) -> bool:
    thinking = getattr(inference.request, "thinking", None)
    return thinking is None or bool(thinking.is_shown)


def _reasoning_of(message: JsonObject) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if isinstance(reasoning, str) else ""


def _object(data: bytes) -> JsonObject:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoAnswer("it is no JSON") from error
    if not isinstance(body, dict):
        raise NoAnswer("it is no JSON object")
    return body


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX else 0
