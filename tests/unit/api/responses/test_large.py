"""Large answers are sent as they are stored, in pieces, and the event loop does other work between them."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from sse_starlette import ServerSentEvent

from api.responses.large import PIECE_BYTES, in_pieces, recorded, whole
from api.responses.streams import TURN_CHARS, event, in_turn
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
def test_an_answer_is_sent_as_it_is_stored_and_other_work_is_done_between_its_pieces(size_bytes: int) -> None:
    text = "x" * size_bytes  # no JSON: that it is not read

    messages, beats = asyncio.run(sent(RecordedAnswer(418, text, Usage())))

    assert messages[0]["status"] == 418
    headers = dict(messages[0]["headers"])
    assert (headers[b"content-type"], headers[b"content-length"]) == (b"application/json", b"%d" % size_bytes)
    pieces = [message["body"] for message in messages[1:]]
    assert b"".join(pieces) == text.encode()
    assert max(map(len, pieces)) <= PIECE_BYTES or size_bytes <= PIECE_BYTES
    assert beats >= size_bytes // PIECE_BYTES - 1  # one before each further piece


def test_other_work_is_done_between_the_events_of_a_stream_that_are_at_hand() -> None:
    async def events() -> AsyncGenerator[ServerSentEvent | bytes, None]:
        for number in range(200):
            yield event("x" * 4_096) if number % 2 else b"x" * 4_096

    async def run() -> tuple[int, int]:
        heartbeat = Heartbeat()
        taken = [each async for each in in_turn(events())]
        heartbeat.stop()
        return len(taken), heartbeat.beats

    taken, beats = asyncio.run(run())
    assert taken == 200
    assert beats >= 200 * 4_096 // TURN_CHARS // 2


def test_pieces_of_what_has_no_end_at_a_character_are_whole_bytes() -> None:
    content = ("é" * PIECE_BYTES).encode()[1:]

    async def pieces() -> list[bytes]:
        return [piece async for piece in in_pieces(content)]

    assert b"".join(asyncio.run(pieces())) == content
    assert whole(b"{}").headers["content-length"] == "2"
