"""Answers of a server: jobs, events, lines of results, refusals. No I/O."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx

from nightshift.errors import ConfigurationError, NightshiftError
from nightshift.jobs import Counts, JobState, JsonObject, Usage
from nightshift.jobs.backoff import Backoff

RETRY: Final = Backoff(first_s=0.5, longest_s=8.0)
LOOKS: Final = Backoff(first_s=0.2, longest_s=2.0, factor=1.5)  # between looks at a job that is waited for
RETRYABLE: Final = frozenset({408, 429, 502, 503, 504})


class ApiError(NightshiftError):
    """The server refused or failed. `status` is the HTTP status; `code` and `param` are the server's.

    `is_repeat`: an earlier try had an unknown outcome. `retry_after_s`: the server's Retry-After.
    """

    is_repeat = False
    retry_after_s: float | None = None

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in RETRYABLE


class ServerUnreachable(NightshiftError):
    """The server does not answer. Is it running? `nightshift up` starts one; NIGHTSHIFT_BASE_URL says where
    it is looked for."""

    default_code = "server_unreachable"


@dataclass(frozen=True, kw_only=True)
class RemoteJob:
    """A job as the server described it. `data` is the whole answer.

    `is_repeat`: a submission was answered with the job of an earlier one.
    """

    id: str
    state: JobState
    counts: Counts
    usage: Usage
    rows_estimated: int | None
    errors: tuple[str, ...]
    data: JsonObject
    is_repeat: bool = False

    @classmethod
    def from_json(cls, data: JsonObject, *, is_repeat: bool = False) -> "RemoteJob":
        counts, usage = data.get("counts") or {}, data.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return cls(
            id=data["id"],
            state=JobState(data["status"]),
            counts=Counts(counts.get("total"), counts.get("succeeded", 0), counts.get("failed", 0)),
            usage=Usage(
                usage.get("prompt_tokens", 0),
                usage.get("completion_tokens", 0),
                details.get("cached_tokens", 0),
            ),
            rows_estimated=data.get("rows_estimated"),
            errors=tuple(error["message"] for error in data.get("errors") or ()),
            data=data,
            is_repeat=is_repeat,
        )

    @property
    def rows_done(self) -> int:
        return self.counts.succeeded + self.counts.failed

    @property
    def rows_expected(self) -> int | None:
        """The number of rows, counted or estimated."""
        return self.counts.total if self.counts.total is not None else self.rows_estimated


@dataclass(frozen=True)
class JobEvent:
    """An event of a job. `id` is where a broken stream continues."""

    id: str
    type: str
    data: JsonObject

    @property
    def is_last(self) -> bool:
        name = self.type.removeprefix("job.")
        return name in set(JobState) and JobState(name).is_terminal


def row_error(row: JsonObject) -> JsonObject:
    """The error of a result's row; empty if it has none."""
    body = (row.get("response") or {}).get("body") or {}
    return row.get("error") or body.get("error") or {}


def parse_events(lines: Iterator[str], on_comment: Callable[[], object] = lambda: None) -> Iterator[JobEvent]:
    """Parse server-sent events. An unfinished event is dropped; `on_comment` is called with each comment."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            on_comment()
        elif line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield JobEvent(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}


def check_base_url(base_url: str) -> None:
    if not base_url.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"{base_url!r} is no URL: it must begin with http:// or https://", param="NIGHTSHIFT_BASE_URL"
        )


def check_api_key(api_key: str) -> None:
    """Raises ConfigurationError for text that no header can carry; the message does not quote it."""
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigurationError(
            "the API key contains characters that no key has: copy it again, or use the one in the file "
            "`api_key` of the data directory",
            param="NIGHTSHIFT_API_KEY",
        )


def lines_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Lines end at a newline alone: texts contain other separators."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def segment(id: str) -> str:
    return quote(id, safe="", errors="surrogatepass")


def json_object(answer: httpx.Response) -> JsonObject:
    try:
        data: Any = answer.json()
    except ValueError as error:
        raise ApiError(
            answer.status_code, f"{answer.url} did not answer with JSON: is it a Nightshift server?"
        ) from error
    return dict(data)


def api_error(answer: httpx.Response, *, is_repeat: bool = False) -> ApiError:
    """The server's error envelope, or else the status and the start of the body."""
    try:
        said = answer.json()["error"]
        error = ApiError(answer.status_code, said["message"], code=said.get("code"), param=said.get("param"))
    except (ValueError, KeyError, TypeError):
        error = ApiError(
            answer.status_code, f"HTTP {answer.status_code} from {answer.url}: {answer.text[:200]}"
        )
    error.is_repeat = is_repeat
    error.retry_after_s = _retry_after_s(answer)
    return error


def _retry_after_s(answer: httpx.Response) -> float | None:
    text = answer.headers.get("retry-after", "")
    return min(float(text), RETRY.longest_s) if text.isdecimal() else None
