"""The meaning of an upstream's failure: whose fault it is, and what follows from it. Pure.

The status codes are HTTP's (RFC 9110) and 529, which hosted APIs answer when they are overloaded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from nightshift.errors import shortened

SAID_BYTES_MAX: Final = 500  # of an upstream's message in a row's error
RETRY_AFTER_MAX_S: Final = 600.0  # an upstream that asks for more is asked again then
OVERLOADED: Final = (408, 425, 429, 503, 529)
KEY_REFUSED: Final = (401, 403)


class UpstreamFault(Exception):
    """The upstream cannot run requests at present; `reason` completes "the upstream …"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unavailable(UpstreamFault):
    """The upstream gives no usable answer."""


class BrokenOff(Unavailable):
    """The upstream had the request, and gave no answer to it: the request may be the cause."""


class TimedOut(BrokenOff):
    """The upstream has not answered in time."""


class Overloaded(UpstreamFault):
    """The upstream has too much to do, and may say for how long."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class KeyRefused(UpstreamFault):
    """The upstream refuses our key: only the operator can help."""


class ModelGone(UpstreamFault):
    """The upstream no longer has the model."""


class RowFailed(Exception):
    """The upstream failed on this request, and may not at another try."""


@dataclass(eq=False)  # not frozen: a traceback is set on it
class RowRefused(Exception):
    """The upstream will never run this request."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


def failure(status: int, headers: Mapping[str, str], data: bytes, now: datetime) -> Exception:
    """The meaning of an answer that is no success. `now`: aware, for a Retry-After that is a date."""
    error = _error_of(data)
    if status in OVERLOADED:
        return Overloaded(f"answers {status}", retry_after_s(headers, now))
    if status in KEY_REFUSED and not _is_about_content(error):
        return KeyRefused(f"refuses its key ({status})")
    if status == 404:
        return ModelGone("no longer has the model (404)")
    if 300 <= status < 400:
        return Unavailable(f"redirects to another place ({status}), which is not followed")
    if error is None or status > 500:
        return Unavailable(f"answers {status}")
    if status == 500:
        return RowFailed(f"The upstream failed on this request: {_said(error)}")
    code = error.get("code")
    param = error.get("param")
    return RowRefused(
        status,
        f"The upstream refuses this request: {_said(error)}",
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else "upstream_refused",
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, as `Retry-After` says (RFC 9110, 10.2.3) or `retry-after-ms`; None: it does not."""
    lowered = {name.lower(): value for name, value in headers.items()}
    try:
        if (milliseconds := lowered.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1_000
        elif (said := lowered.get("retry-after", "")).replace(".", "", 1).isdecimal():
            seconds = float(said)
        else:
            seconds = (parsedate_to_datetime(said) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_MAX_S) if seconds == seconds else None


def _error_of(data: bytes) -> Mapping[str, Any] | None:
    """The error of an answer's JSON: OpenAI's envelope, or vLLM's and FastAPI's without one."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    error = body.get("error", body)
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict) and ("message" in error or "detail" in error):
        return {"message": error.get("message") or error.get("detail")} | error
    return None


def _said(error: Mapping[str, Any]) -> str:
    message = error.get("message")
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return shortened(" ".join(text.split()), SAID_BYTES_MAX).rstrip(".") + "."


def _is_about_content(error: Mapping[str, Any] | None) -> bool:
    """Whether a refusal is a filter's, not the key's."""
    kinds = " ".join(str((error or {}).get(name)) for name in ("code", "type")).lower()
    return any(word in kinds for word in ("content", "moderation", "policy"))
