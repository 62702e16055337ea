"""Limits what a tenant has in progress at a time in this process: requests, streams and uploads.

Applied where a caller is authenticated and a body read (`api/dependencies.py`), so that a new route needs
nothing for it. Counts die with the process, as do its connections.
"""

from collections import Counter
from contextlib import ExitStack
from typing import Final

from starlette.requests import Request

from api.access.authentication import Caller
from nightshift.errors import TooManyRequests
from nightshift.jobs import JsonObject

REQUESTS: Final = "concurrent_requests"
STREAMS: Final = "open_streams"
UPLOADS: Final = "uploads_in_flight"
FOLLOWED: Final = "followed_jobs"

FOLLOWED_MAX: Final = 100  # event streams of a tenant: each reads the database twice a second

RETRY_AFTER_S: Final = 1

_IN_WORDS: Final = {
    REQUESTS: "Requests being answered",
    STREAMS: "Streams open",
    UPLOADS: "Uploads under way",
    FOLLOWED: "Streams of events open",
}


class Slots:
    """What is in progress, by tenant and quota. For one event loop."""

    def __init__(self) -> None:
        self._held: Counter[tuple[str, str]] = Counter()

    def hold(self, caller: Caller, names: tuple[str, ...], until: ExitStack) -> None:
        """Count one of each until the stack is closed. Raises TooManyRequests at a quota."""
        for name in names:
            limit: int | None = FOLLOWED_MAX if name == FOLLOWED else getattr(caller.quotas, name)
            if limit is not None and self.held(caller.tenant_id, name) >= limit:
                advice = "" if name == FOLLOWED else ", or ask an administrator for more"
                raise TooManyRequests(
                    f"{_IN_WORDS[name]} for you already: {limit}, which is your limit. "
                    f"Wait for one to end{advice}.",
                    retry_after_s=RETRY_AFTER_S,
                )
        keys = [(caller.tenant_id, name) for name in names]
        self._held.update(keys)
        until.callback(self._release, keys)

    def held(self, tenant_id: str, name: str) -> int:
        return self._held[tenant_id, name]

    def _release(self, keys: list[tuple[str, str]]) -> None:
        self._held.subtract(keys)
        self._held += Counter()  # drops the zeros


def slots_of_request(request: Request) -> tuple[str, ...]:
    """The quotas of which this request takes one before its body is read."""
    if request.method == "POST" and _content_type(request).startswith("multipart/form-data"):
        return REQUESTS, UPLOADS
    if request.method == "GET" and request.scope["route"].path_format.endswith("/events"):
        return REQUESTS, STREAMS, FOLLOWED
    return (REQUESTS,)


def slots_of_body(body: JsonObject) -> tuple[str, ...]:
    return (STREAMS,) if body.get("stream") is True else ()


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").lower()
