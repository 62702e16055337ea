"""Requests of each route as a simulated upstream reads them, and its answers as vLLM writes them."""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.helpers.upstreams import texts
from tests.helpers.upstreams.settings import Settings
from tests.helpers.upstreams.texts import Answer

Json = dict[str, Any]
CREATED = 1_790_000_000


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "error")
        error = {"message": message, "type": kind, "param": param, "code": code or status}
        self.status, self.headers, self.body = status, headers, {"error": error}
        super().__init__(message)


@dataclass(frozen=True)
class Choice:
    index: int
    prompt_ids: Sequence[int]
    answer: Answer


class Generation:
    """A request for generated text. `refusal`: why it can never run."""

    def __init__(self, body: Json, settings: Settings, *, is_chat: bool) -> None:
        self.is_chat, self.is_llama_cpp = is_chat, settings.is_llama_cpp
        self.model = str(settings.models[0] if settings.is_llama_cpp else body["model"])
        understands = settings.understands
        self.is_streamed = bool(body.get("stream"))
        self.has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.has_token_ids = "return_token_ids" in understands and bool(body.get("return_token_ids"))
        self.has_logprobs = body.get("logprobs") not in (None, False)
        self.repeated = ""
        if settings.is_llama_cpp and is_chat and body["messages"][-1]["role"] == "assistant":
            body = {**body, "continue_final_message": True}
            self.repeated = texts.content_text(body["messages"][-1]["content"])
        elif "continue_final_message" not in understands:
            body = {name: value for name, value in body.items() if name != "continue_final_message"}
        prompts = [texts.encode(texts.rendered(body))] if is_chat else _prompts(body.get("prompt", ""))
        self.prompt_tokens = sum(map(len, prompts))
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
        if max_tokens is None and not is_chat:
            max_tokens = 16
        self.refusal: Refusal | None = None
        longest = max(map(len, prompts), default=0)
        if settings.max_model_len is not None and longest + (max_tokens or 1) > settings.max_model_len:
            message = (
                f"This model's maximum context length is {settings.max_model_len} tokens. However, your "
                f"prompt contains {longest} input tokens."
            )
            code = None if settings.owned_by == "vllm" else "context_length_exceeded"
            self.refusal = Refusal(400, message, "input_tokens", code)
        is_endless = bool(body.get("ignore_eos"))
        count = body.get("n") or 1
        self.choices = [
            Choice(
                at * count + choice,
                prompt,
                texts.answer(
                    prompt,
                    max_tokens,
                    own_tokens=settings.own_tokens,
                    is_endless=is_endless,
                    choice=choice,
                ),
            )
            for at, prompt in enumerate(prompts)
            for choice in range(count)
        ]

    @property
    def num_continued(self) -> int:
        return sum(choice.answer.num_continued for choice in self.choices)

    @property
    def length(self) -> int:
        """Tokens of its longest choice."""
        return max(len(choice.answer.token_ids) for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        counted = self.choices[:1] if self.is_llama_cpp else self.choices
        return sum(len(choice.answer.token_ids) for choice in counted)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def usage(self) -> Json:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return counts | {"total_tokens": self.total_tokens, "prompt_tokens_details": None}

    def body(self, id: str) -> Json:
        choices = []
        for choice in self.choices:
            answer = choice.answer
            said: Json = {"index": choice.index, "finish_reason": answer.finish_reason, "stop_reason": None}
            said["logprobs"] = self._logprobs(answer.token_ids, 0)
            if self.is_chat:
                said["message"] = {"role": "assistant", "content": self.repeated + answer.text}
            else:
                said["text"] = answer.text
            if self.has_token_ids:
                said["token_ids"] = list(answer.token_ids)
            if self.has_token_ids and not self.is_chat:
                said["prompt_token_ids"] = list(choice.prompt_ids)
            choices.append(said)
        body = self._head(id, "") | {"choices": choices, "usage": self.usage()}
        if self.has_token_ids and self.is_chat:
            body["prompt_token_ids"] = list(self.choices[0].prompt_ids)
        return body

    def opening(self, id: str) -> Json | None:
        """The event before the first token."""
        if not self.is_chat:
            return None
        choices = [
            {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            for choice in self.choices
        ]
        event = self._head(id, ".chunk") | {"choices": choices}
        return event | ({"prompt_token_ids": list(self.choices[0].prompt_ids)} if self.has_token_ids else {})

    def event(self, id: str, choice: Choice, at: int) -> Json:
        """The event of a choice's token; one past the last is of an answer without tokens."""
        ids, last = choice.answer.token_ids[at : at + 1], at >= len(choice.answer.token_ids) - 1
        said: Json = {"index": choice.index, "logprobs": self._logprobs(ids, at)}
        said["finish_reason"] = choice.answer.finish_reason if last else None
        if self.is_chat:
            said["delta"] = {"content": texts.text_of(ids)}
        else:
            said["text"] = texts.text_of(ids)
        if self.has_token_ids:
            said["token_ids"] = list(ids)
            if at == 0 and not self.is_chat:
                said["prompt_token_ids"] = list(choice.prompt_ids)
        event = self._head(id, ".chunk") | {"choices": [said]}
        return event | {"usage": self.usage()} if last and self._counts_with_the_last else event

    def closing(self, id: str) -> Json | None:
        """The event of the counts, where they are asked for and not said yet."""
        if not self.has_usage or self._counts_with_the_last:
            return None
        return self._head(id, ".chunk") | {"choices": [], "usage": self.usage()}

    @property
    def _counts_with_the_last(self) -> bool:
        return self.is_llama_cpp and not self.is_chat

    def _head(self, id: str, chunk: str) -> Json:
        name = "chat.completion" + chunk if self.is_chat else "text_completion"
        prefix = "chatcmpl-" if self.is_chat else "cmpl-"
        return {"id": prefix + id, "object": name, "created": CREATED, "model": self.model}

    def _logprobs(self, token_ids: Sequence[int], at: int) -> Json | None:
        if not self.has_logprobs:
            return None
        said = [(texts.text_of([id]), texts.logprob(id)) for id in token_ids]
        if self.is_chat or self.is_llama_cpp:
            return {
                "content": [
                    {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                    for text, logprob in said
                ]
            }
        return {
            "tokens": [text for text, _ in said],
            "token_logprobs": [logprob for _, logprob in said],
            "top_logprobs": [{text: logprob} for text, logprob in said],
            "text_offset": [(at + index) * len(text) for index, (text, _) in enumerate(said)],
        }


def encoded(path: str, body: Json, settings: Settings, id: str) -> Json:
    """The answer of a route that generates nothing."""
    head = {"id": id, "object": "list", "created": CREATED, "model": body["model"]}
    if path == "embeddings":
        inputs = _prompts(body["input"])
        vectors = [texts.vector(repr(ids), body.get("dimensions") or settings.dimensions) for ids in inputs]
        is_base64 = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if is_base64 else vector}
            for index, vector in enumerate(vectors)
        ]
        return head | {"data": data, "usage": _read(sum(map(len, inputs)))}
    if path == "rerank":
        documents = [_text(document) for document in body["documents"]]
        scores = [texts.score(body["query"], document) for document in documents]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.get("top_n")]
        results = [
            {"index": at, "document": {"text": documents[at]}, "relevance_score": scores[at]} for at in order
        ]
        usage = _read(sum(len(texts.encode(body["query"] + document)) for document in documents))
        return {"id": id, "model": body["model"], "results": results, "usage": usage}
    first, second = (
        _listed(body.get("text_1") or body["queries"]),
        _listed(body.get("text_2") or body["documents"]),
    )
    pairs = list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))
    data = [
        {"index": index, "object": "score", "score": texts.score(*pair)} for index, pair in enumerate(pairs)
    ]
    return head | {"data": data, "usage": _read(sum(len(texts.encode("".join(pair))) for pair in pairs))}


def prompt_of(body: Mapping[str, Any]) -> str:
    """The text by which a test knows a request: the last message of a user's, the prompt, the first input."""
    if messages := body.get("messages"):
        said = [message.get("content") for message in messages if message.get("role") == "user"]
        return texts.content_text(said[-1]) if said else ""
    names = ("prompt", "input", "query", "queries", "text_1")
    given = next((body[name] for name in names if name in body), "")
    return _text(given[0] if isinstance(given, list) and given and isinstance(given[0], str) else given)


def model_list(settings: Settings) -> Json:
    more: Json = {}
    if settings.is_llama_cpp:
        more = {"meta": {"n_ctx": settings.max_model_len}}
    elif settings.max_model_len is not None:
        more = {"root": settings.root, "parent": None, "max_model_len": settings.max_model_len}
    card = {"object": "model", "created": CREATED, "owned_by": settings.owned_by, **more}
    return {"object": "list", "data": [{"id": model, **card} for model in settings.models]}


def _prompts(given: Any) -> list[list[int]]:
    """A text or token ids, or a list of either."""
    if isinstance(given, str):
        return [texts.encode(given)]
    if given and isinstance(given[0], int):
        return [given]
    return [texts.encode(one) if isinstance(one, str) else one for one in given]


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _read(num_tokens: int) -> Json:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}


def _text(given: Any) -> str:
    return given["text"] if isinstance(given, dict) else str(given)


def _listed(given: Any) -> list[str]:
    return [_text(one) for one in (given if isinstance(given, list) else [given])]
