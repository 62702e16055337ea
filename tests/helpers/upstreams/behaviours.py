"""Ways in which a simulated upstream misbehaves. Each function takes fields that choose requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

AS_IT_IS: Final = "as it is"


@dataclass(frozen=True)
class Behaviour:
    """The requests that it concerns, and how they are answered other than well.

    A streamed answer counts in events, another in bytes: `holds_at` and `cuts_at` 0 are before the first.
    """

    path: str = ""  # how theirs ends
    containing: str = ""  # a text in their body
    skips: int = 0  # so many of them are answered well first
    times: int | None = None  # then so many as said here; None: all

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None  # in place of the answer
    padding_bytes: int = 0  # spaces after the body
    holds_at: int | None = None  # where it stops until the behaviours change
    cuts_at: int | None = None  # where it closes the connection
    usage: Any = AS_IT_IS  # in place of the true counts; None: there is none
    finish_reason: Any = AS_IT_IS
    event: str | None = None  # in place of a stream's event `event_at`, as it goes over the line
    event_at: int = 3
    has_done: bool = True  # whether a stream ends with [DONE]


def fails(status: int, message: str, *, code: str | None = None, **more: Any) -> Behaviour:
    """An error as OpenAI words it."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    return Behaviour(status=status, body=json.dumps({"error": error}), **more)


def too_many(retry_after_s: float | None = None, **more: Any) -> Behaviour:
    headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    return fails(429, "Rate limit reached.", code="rate_limit_exceeded", headers=headers, **more)


def unavailable(**more: Any) -> Behaviour:
    return Behaviour(status=503, body="upstream connect error", headers=TEXT, **more)


def html(status: int = 502, **more: Any) -> Behaviour:
    """The page of a proxy."""
    page = "<html><head><title>Bad Gateway</title></head><body>nginx</body></html>"
    return Behaviour(status=status, body=page, headers={"content-type": "text/html"}, **more)


def redirects(to: str, **more: Any) -> Behaviour:
    return Behaviour(status=307, body="", headers={"location": to}, **more)


def wrong_key(**more: Any) -> Behaviour:
    return fails(401, "Incorrect API key provided.", code="invalid_api_key", **more)


def context_too_long(**more: Any) -> Behaviour:
    return fails(400, "Your prompt is too long for this model.", code="context_length_exceeded", **more)


def breaks(**more: Any) -> Behaviour:
    """The 500 of an engine that fails at some rows."""
    return fails(500, "CUDA error: device-side assert triggered", **more)


def enormous(padding_bytes: int = 1 << 30, **more: Any) -> Behaviour:
    return Behaviour(padding_bytes=padding_bytes, **more)


def holds(at: int = 0, **more: Any) -> Behaviour:
    return Behaviour(holds_at=at, **more)


def cuts(at: int = 0, **more: Any) -> Behaviour:
    """An answer cut short: at 0 like a server that closes an idle connection just when it is used again."""
    return Behaviour(cuts_at=at, **more)


def filters(**more: Any) -> Behaviour:
    return Behaviour(finish_reason="content_filter", **more)


def unfinished(**more: Any) -> Behaviour:
    """A stream that ends in [DONE] with no finish reason: llama-cpp-python's, which another request ended."""
    return Behaviour(finish_reason=None, **more)


def counts(usage: Mapping[str, Any] | None, **more: Any) -> Behaviour:
    return Behaviour(usage=usage, **more)


def says(event: str, at: int = 3, **more: Any) -> Behaviour:
    return Behaviour(event=event, event_at=at, **more)


TEXT: Final = {"content-type": "text/plain"}
NO_JSON: Final = 'data: {"choices": [{"index": 0, "delta"\n\n'
ERROR_EVENT: Final = 'data: {"error": {"message": "EngineDeadError", "type": "error", "code": 500}}\n\n'
KEEP_ALIVE: Final = ": keep-alive\n\n"
