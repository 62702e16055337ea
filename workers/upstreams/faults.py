"""The meaning of an upstream's failure: whose fault it is, and what follows from it. Pure but for the clock.

The status codes are HTTP's (RFC 9110) and 529, which hosted APIs answer when they are overloaded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from nightshift.errors import shortened

SAID_BYTES_MAX: Final = 500  # of an upstream's message in a row's error
ROW_REFUSED: Final = (400, 413, 422)
OVERLOADED: Final = (408, 425, 429, 503, 529)


class UpstreamFault(Exception):
    """The upstream cannot run requests at present."""

    def __init__(self, reason: str, said: str = "") -> None:
        """`reason` completes "the upstream …". `said`: its message, for the owner of the request alone."""
        super().__init__(f"{reason}: {said}" if said else reason)
        self.reason = reason


class Unavailable(UpstreamFault):
    """The upstream gives no usable answer."""


class ModelGone(Unavailable):
    """The upstream no longer has the model."""


class BrokenOff(Unavailable):
    """The upstream had the request, and gave no answer to it: the request may be the cause."""


class TimedOut(BrokenOff):
    """The upstream has not answered in time."""


class RowFailed(BrokenOff):
    """The upstream failed on this request, and may not at another try."""


class Overloaded(UpstreamFault):
    """The upstream has too much to do, and may say for how long."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class KeyRefused(UpstreamFault):
    """The upstream refuses our key: only the operator can help."""


class UpstreamChanged(Exception):
    """The upstream has another model of the same name, which the worker has to register."""


@dataclass(eq=False)  # not frozen: a traceback is set on it
class RowRefused(Exception):
    """The upstream will never run this request."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


def parsed(data: bytes) -> Any:
    """The value of a JSON text; None for any other."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def failure(status: int, headers: Mapping[str, str], body: Any) -> Exception:
    """The meaning of an answer that is no success. `headers` have names in lower case, or know no case; the
    body is parsed.
    """
    error = _error_of(body)
    reason, said = f"answers {status}", "" if error is None else _said(error)
    if status in OVERLOADED:
        return Overloaded(reason, retry_after_s(headers, datetime.now(UTC)))
    if status == 404:
        return ModelGone("no longer has the model (404)", said)
    if 300 <= status < 400:
        return Unavailable(f"redirects to another place ({status}), which is not followed")
    if error is not None and (status in ROW_REFUSED or (status in (401, 403) and _is_about_content(error))):
        param, code = error.get("param"), error.get("code")
        return RowRefused(
            status,
            f"The upstream refuses this request: {said}.",
            param if isinstance(param, str) else None,
            code if isinstance(code, str) else "upstream_refused",
        )
    if status == 401:
        return KeyRefused("refuses its key (401)")
    return (Unavailable if error is None or status != 500 else RowFailed)(reason, said)


def check_success(body: Mapping[str, Any]) -> None:
    """Raises the failure that an answer or an event of a stream tells under the status of a success."""
    if (error := body.get("error")) and not body.get("choices"):
        code = error.get("code") if isinstance(error, dict) else None
        raise failure(code if isinstance(code, int) and 400 <= code < 600 else 500, {}, body)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, as `Retry-After` says (RFC 9110, 10.2.3) or `retry-after-ms`; None: it does not.
    `now` is aware, as a date is.
    """
    said = headers.get("retry-after", "")
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1_000
        elif said.replace(".", "", 1).isdecimal():
            seconds = float(said)
        else:
            seconds = (parsedate_to_datetime(said) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _error_of(body: Any) -> Mapping[str, Any] | None:
    """The error of an answer: OpenAI's envelope, or vLLM's and FastAPI's without one."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict) and ("message" in error or "detail" in error):
        return error | {"message": error.get("message") or error.get("detail")}
    return None


def _said(error: Mapping[str, Any]) -> str:
    message = error.get("message")
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return shortened(" ".join(text.split()), SAID_BYTES_MAX).rstrip(".")


def _is_about_content(error: Mapping[str, Any]) -> bool:
    """Whether a refusal is a filter's, not the key's."""
    kinds = " ".join(str(error.get(name)) for name in ("code", "type")).lower()
    return any(word in kinds for word in ("content", "moderation", "policy"))
