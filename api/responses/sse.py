"""Server-sent events: keep-alive comments, and a timeout for clients that stop reading."""

from collections.abc import AsyncGenerator
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent

PING_S: Final = 15  # proxies drop connections that stay silent
SEND_TIMEOUT_S: Final = 60.0  # a client that reads nothing for so long is gone

LINE_END: Final = "\n"


def event(data: str, *, id: str | None = None, type: str | None = None) -> ServerSentEvent:
    """One event; the official clients expect it to end with a blank line and no carriage returns."""
    return ServerSentEvent(data, id=id, event=type, sep=LINE_END)


def event_source(events: AsyncGenerator[ServerSentEvent, None]) -> EventSourceResponse:
    """Send events as they come."""
    return EventSourceResponse(events, sep=LINE_END, ping=PING_S, send_timeout=SEND_TIMEOUT_S)
