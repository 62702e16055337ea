"""Server-sent events: keep-alive comments, and a timeout for clients that stop reading."""

from collections.abc import AsyncGenerator
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent

PING_S: Final = 15  # proxies drop silent connections
SEND_TIMEOUT_S: Final = 60.0  # of a client that reads nothing

LINE_END: Final = "\n"


def event(data: str, *, id: str | None = None, type: str | None = None) -> ServerSentEvent:
    """One event; the official clients expect a blank line at its end and no carriage returns."""
    return ServerSentEvent(data, id=id, event=type, sep=LINE_END)


def comment(text: str) -> ServerSentEvent:
    """Bytes on the wire that are no event."""
    return ServerSentEvent(comment=text, sep=LINE_END)


def event_source(events: AsyncGenerator[ServerSentEvent | bytes, None]) -> EventSourceResponse:
    return EventSourceResponse(events, sep=LINE_END, ping=PING_S, send_timeout=SEND_TIMEOUT_S)
