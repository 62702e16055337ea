"""Ids, token counts, service tiers and the error envelope."""

import hashlib
from typing import Final

from nightshift.errors import MESSAGE_BYTES_MAX, PARAM_BYTES_MAX, shortened
from nightshift.jobs import JsonObject, Usage

ANSWER_ID_CHARS: Final = 24  # without the prefix


def answer_id(prefix: str, name: str) -> str:
    """An answer's id, such as `chatcmpl-…`: the same at every attempt, streamed and recorded. `name` is
    unique for the row or request.
    """
    return prefix + hashlib.sha256(f"{prefix}{name}".encode()).hexdigest()[:ANSWER_ID_CHARS]


def usage_json(usage: Usage) -> JsonObject:
    """A job's token counts."""
    return answer_usage(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> JsonObject:
    """The error envelope, with shortened texts."""
    about = None if param is None else shortened(param, PARAM_BYTES_MAX)
    message = shortened(message, MESSAGE_BYTES_MAX)
    return {"error": {"message": message, "type": type, "param": about, "code": code}}


def answer_usage(usage: Usage) -> JsonObject:
    """An answer's token counts, without cached tokens: those depend on the other load, and a repeated row
    must give the same bytes.
    """
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
