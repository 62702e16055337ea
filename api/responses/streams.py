"""Server-sent events: keep-alive comments, and a timeout for clients that stop reading."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from nightshift.jobs import RecordedAnswer

PIECE_BYTES: Final = 256 * 1024  # sent at a time
JSON_TYPE: Final = "application/json"


async def recorded(answer: RecordedAnswer) -> Response:
    """An answer with its status."""
    encode = answer.text.encode
    return whole(await run_in_threadpool(encode) if answer.is_large else encode(), answer.status_code)


def whole(content: bytes, status_code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that is there already."""
    headers = {**(headers or {}), "content-length": str(len(content))}
    if len(content) <= PIECE_BYTES:
        return Response(content, status_code, headers, media_type=JSON_TYPE)
    return StreamingResponse(in_pieces(content), status_code, headers, media_type=JSON_TYPE)


async def in_pieces(content: bytes) -> AsyncIterator[bytes]:
    """A client that reads quickly keeps no piece waiting, so that sending alone would not let others run."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
        await asyncio.sleep(0)


PING_S: Final = 15  # proxies drop silent connections
TURN_CHARS: Final = 16 * 1024  # of events in a row: some milliseconds of work
SEND_TIMEOUT_S: Final = 60.0  # of a client that reads nothing

LINE_END: Final = "\n"


def event(data: str, *, id: str | None = None, type: str | None = None) -> ServerSentEvent:
    """One event; the official clients expect a blank line at its end and no carriage returns."""
    return ServerSentEvent(data, id=id, event=type, sep=LINE_END)


def comment(text: str) -> ServerSentEvent:
    """Bytes on the wire that are no event."""
    return ServerSentEvent(comment=text, sep=LINE_END)


def event_source(events: AsyncGenerator[ServerSentEvent | bytes, None]) -> EventSourceResponse:
    return EventSourceResponse(in_turn(events), sep=LINE_END, ping=PING_S, send_timeout=SEND_TIMEOUT_S)


async def in_turn(
    events: AsyncGenerator[ServerSentEvent | bytes, None],
) -> AsyncGenerator[ServerSentEvent | bytes, None]:
    """The same events. The event loop does other work now and then, also where all events are at hand and the
    client takes them at once.
    """
    chars_in_row = 0
    async with aclosing(events):
        with suppress(ClientDisconnect):  # while it is answered, the end of a stream and no error
            async for item in events:
                yield item
                chars_in_row += len(item) if isinstance(item, bytes) else len(str(item.data))
                if chars_in_row > TURN_CHARS:
                    chars_in_row = 0
                    await asyncio.sleep(0)
