"""The wire, from us: what an answer to a request looks like. Shapes are OpenAI's; nothing here decides
anything.

`requests.py` has the other half, what a request may say; an answer that is streamed comes as
`api/openai/chunks.py` cuts it.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import JsonObject, Usage

ERROR_CHARS_MAX: Final = 1000  # of an error's message, and of the name of what it is about


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a prompt, of which there may be several."""

    text: str
    finish_reason: str
    logprobs: JsonObject | None = None  # in the shape of its endpoint: `logprobs.py`


def chat_completion(
    *,
    id: str,
    created_s: int,
    model: str,
    choices: Sequence[Choice],
    usage: Usage,
    service_tier: str | None = None,
) -> JsonObject:
    """The body of a chat answer."""
    shown = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    body = _answer(id, "chat.completion", created_s, model, shown, usage)
    return body | {"service_tier": service_tier, "system_fingerprint": None}


def text_completion(
    *, id: str, created_s: int, model: str, choices: Sequence[Choice], usage: Usage
) -> JsonObject:
    """The body of a completion answer."""
    shown = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    return _answer(id, "text_completion", created_s, model, shown, usage)


def embedding_list(
    *, model: str, embeddings: Sequence[bytes], encoding_format: str, prompt_tokens: int
) -> JsonObject:
    """The body of an embedding answer. Each embedding is little-endian float32 bytes."""
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding_format)}
            for index, vector in enumerate(embeddings)
        ],
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def usage_json(usage: Usage) -> JsonObject:
    """Token counts of a whole job."""
    return _answer_usage(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> JsonObject:
    """The one envelope every error travels in. However much of the request it repeats, it stays short."""
    about = None if param is None else _clipped(param)
    return {"error": {"message": _clipped(message), "type": type, "param": about, "code": code}}


def _answer(
    id: str, object: str, created_s: int, model: str, choices: Sequence[JsonObject], usage: Usage
) -> JsonObject:
    return {
        "id": id,
        "object": object,
        "created": created_s,
        "model": model,
        "choices": choices,
        "usage": _answer_usage(usage),
    }


def _answer_usage(usage: Usage) -> JsonObject:
    """Token counts of one answer. What came from the cache depends on who else was running, and a row that
    is run again must give the same bytes: so that is counted for the job, and not said here.
    """
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _clipped(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"


def _encoded(vector: bytes, encoding_format: str) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(vector).decode()
    return list(memoryview(vector).cast("f"))
