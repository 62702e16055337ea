"""Large answers and streams are sent in pieces, between which the event loop does other work."""

import asyncio
import logging
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from api.middleware.boundary import Boundary, HttpMetrics
from api.responses.errors import install_error_handlers
from api.responses.streams import (
    PIECE_BYTES,
    TURN_CHARS,
    event,
    event_source,
    in_pieces,
    in_turn,
    recorded,
    whole,
)
from nightshift.jobs import RecordedAnswer, Usage

SIZES = [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES, 40 * PIECE_BYTES]


class Heartbeat:
    """Counts how often the event loop came to other work."""

    def __init__(self) -> None:
        self.beats = 0
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            self.beats += 1
            await asyncio.sleep(0)

    def stop(self) -> None:
        self._task.cancel()


async def sent(answer: RecordedAnswer) -> tuple[list[MutableMapping[str, Any]], int]:
    """The messages to a client that takes everything at once, and the beats meanwhile."""
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("the client stays")

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    heartbeat = Heartbeat()
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    await (await recorded(answer))(scope, receive, send)
    heartbeat.stop()
    return messages, heartbeat.beats


@pytest.mark.parametrize("size_bytes", SIZES)
def test_an_answer_is_sent_as_it_is_stored_and_other_work_is_done_between_its_pieces(size_bytes):
    text = "x" * size_bytes  # no JSON: that it is not read

    messages, beats = asyncio.run(sent(RecordedAnswer(418, text, Usage())))

    assert messages[0]["status"] == 418
    headers = dict(messages[0]["headers"])
    assert (headers[b"content-type"], headers[b"content-length"]) == (b"application/json", b"%d" % size_bytes)
    pieces = [message["body"] for message in messages[1:]]
    assert b"".join(pieces) == text.encode()
    assert max(map(len, pieces)) <= PIECE_BYTES or size_bytes <= PIECE_BYTES
    assert beats >= size_bytes // PIECE_BYTES - 1  # one before item further piece


def test_other_work_is_done_between_the_events_of_a_stream_that_are_at_hand():
    async def events() -> AsyncGenerator[ServerSentEvent | bytes, None]:
        for number in range(200):
            yield event("x" * 4_096) if number % 2 else b"x" * 4_096

    async def run() -> tuple[int, int]:
        heartbeat = Heartbeat()
        taken = [item async for item in in_turn(events())]
        heartbeat.stop()
        return len(taken), heartbeat.beats

    taken, beats = asyncio.run(run())
    assert taken == 200
    assert beats >= 200 * 4_096 // TURN_CHARS // 2


def test_pieces_of_what_has_no_end_at_a_character_are_whole_bytes():
    content = ("é" * PIECE_BYTES).encode()[1:]

    async def pieces() -> list[bytes]:
        return [piece async for piece in in_pieces(content)]

    assert b"".join(asyncio.run(pieces())) == content
    assert whole(b"{}").headers["content-length"] == "2"


SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}


def streaming(end: type[Exception]) -> FastAPI:
    """Its stream ends as one does whose client has disconnected, or reads nothing for a minute."""

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        yield event("one")
        raise end

    async def stream() -> Response:
        return event_source(events())

    app = FastAPI()
    app.add_api_route("/", stream, response_model=None)
    app.add_middleware(Boundary, metrics=HttpMetrics())
    install_error_handlers(app)
    return app


@pytest.mark.parametrize("end", [ClientDisconnect, SendTimeoutError])
def test_a_stream_without_a_client_is_logged_without_an_error(end, caplog):
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    with caplog.at_level(logging.INFO):
        asyncio.run(streaming(end)(SCOPE, receive, send))

    assert [message["body"] for message in sent[1:2]] == [b"data: one\n\n"]
    assert {record.levelname for record in caplog.records if record.name.startswith("api")} == {"INFO"}
    assert not [record for record in caplog.records if record.exc_info]
