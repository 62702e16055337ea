"""Bodies as bytes: what is a JSON object we can keep, and how much of it is read."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.middleware import request_bodies as limits
from api.middleware.request_bodies import (
    JSON_DEPTH_MAX,
    MORE_PARTS,
    UPLOAD_OVERHEAD_BYTES,
    BodyLimit,
    parse_json_object,
)
from nightshift.errors import InvalidRequest, RequestTimedOut, RequestTooLarge
from nightshift.jobs.files import PART_BYTES_MAX
from nightshift.process.settings import ApiSettings

SETTINGS = ApiSettings(body_bytes_max=100, file_bytes_max=1000)


def nested(depth: int) -> bytes:
    """An object with `depth` containers inside one another."""
    return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "value", [{}, {"a": [1, "é", None]}, {"a": "\\u0000"}, {"a": "😀"}, {"a": "\\ud800 as text"}]
)
def test_an_object_is_read_as_it_was_written(value):
    assert parse_json_object(json.dumps(value).encode()) == value
    assert parse_json_object(json.dumps(value, ensure_ascii=False).encode()) == value


def test_depth_is_allowed_up_to_the_limit():
    parse_json_object(nested(JSON_DEPTH_MAX))
    for depth in (JSON_DEPTH_MAX + 1, 500, 100_000):
        with pytest.raises(InvalidRequest, match="levels deep"):
            parse_json_object(nested(depth))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}{}",
        b'{"a": Infinity}',
        b'{"a": "\\udc00"}',
        b'{"\\u0000": 1}',
        b"\xff",
        b'{"a": "\xed\xa0\x80"}',  # half of a surrogate pair as it would be in UTF-8
        '{"a": "\\u0000"}'.encode("utf-16"),
        b'{"a": ' + b"9" * 4301 + b"}",
        b'{"a": 1e999}',
        b'{"a": [-' + b"9" * 100_000 + b"]}",
    ],
)
def test_anything_else_is_refused_with_a_code(raw):
    with pytest.raises(InvalidRequest) as refused:
        parse_json_object(raw)
    assert refused.value.code in ("invalid_json", "invalid_type")


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (rb'{"model": "m", "metadata": {"who": "\ud800"}}', "metadata.who"),
        (
            rb'{"messages": [{"content": "fine"}, {"content": [{"text": "\u0000"}]}]}',
            "messages[1].content[0].text",
        ),
        (rb'{"metadata": {"\udfff": "x"}}', None),
        (b'{"' + b"x" * 500 + rb'": "\u0000"}', "x" * 100),
    ],
)
def test_a_text_no_database_can_keep_is_refused_by_the_name_of_its_field(raw, param):
    with pytest.raises(InvalidRequest) as refused:
        parse_json_object(raw)

    assert refused.value.param == param
    assert (param or "the name of a field") in refused.value.message
    refused.value.message.encode()


IN_PARTS = f"Send a file of up to {SETTINGS.upload_bytes_max} bytes in parts, with POST /v1/uploads."


@pytest.mark.parametrize(
    ("path", "bytes_max", "advice"),
    [
        ("/v1/jobs", 100, IN_PARTS),
        ("/v1/chat/completions", 100, IN_PARTS),
        ("/v1/files", 1000 + UPLOAD_OVERHEAD_BYTES, IN_PARTS),
        ("/v1/uploads/upload_1/parts", PART_BYTES_MAX + UPLOAD_OVERHEAD_BYTES, MORE_PARTS),
    ],
)
def test_a_body_is_read_up_to_its_routes_limit_and_refused_above_whatever_it_comes_in(
    path, bytes_max, advice
):
    assert read_body(path, [b"x" * 60, b"y" * (bytes_max - 60)]) == b"x" * 60 + b"y" * (bytes_max - 60)
    for pieces in ([b"x" * (bytes_max + 1)], [b"x" * bytes_max, b"y"]):
        with pytest.raises(RequestTooLarge) as refused:
            read_body(path, pieces)
        assert advice in refused.value.message


def read_body(path: str, pieces: list[bytes]) -> bytes:
    """Bytes that an application reads through the limit."""
    left = [*pieces]

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return asyncio.run(read_all(receive, path))


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(limits, "BODY_S", 0.01)
    pieces: Iterator[Message] = iter([{"type": "http.request", "body": b"x", "more_body": True}])

    async def receive() -> Message:
        for piece in pieces:
            return piece
        await asyncio.Event().wait()
        raise AssertionError("it never comes")

    with pytest.raises(RequestTimedOut):
        asyncio.run(read_all(receive))


def test_a_large_body_may_take_as_long_as_its_bytes_do(monkeypatch):
    """The time for its beginning alone is up when its second piece is read."""
    monkeypatch.setattr(limits, "BODY_S", 0.0)
    monkeypatch.setattr(limits, "BODY_BYTES_PER_S_MIN", 1 / 60)
    first: Message = {"type": "http.request", "body": b"x", "more_body": True}
    pieces = iter([first, {"type": "http.request", "body": b"y", "more_body": False}])

    async def receive() -> Message:
        piece = next(pieces)
        if piece is not first:
            await asyncio.sleep(0)
        return piece

    assert asyncio.run(read_all(receive)) == b"xy"


def test_waiting_for_the_client_to_disconnect_has_no_time_limit(monkeypatch):
    monkeypatch.setattr(limits, "BODY_S", 0.0)
    pieces = iter([{"type": "http.request", "body": b"x", "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        piece = next(pieces)
        if piece["type"] == "http.disconnect":
            await asyncio.sleep(0.01)
        return piece

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    asyncio.run(BodyLimit(application, SETTINGS)({"type": "http", "path": "/"}, receive, sends_nothing))


@pytest.mark.parametrize("length", [b"1000000000000", b"9" * 19, b"9" * 5000])
def test_a_body_that_announces_far_too_much_is_refused_before_it_is_read(length):
    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(RequestTooLarge):
            await receive()

    scope = {"type": "http", "path": "/", "headers": [(b"content-length", length)]}
    asyncio.run(BodyLimit(application, SETTINGS)(scope, receive, sends_nothing))


async def sends_nothing(message: Message) -> None:
    raise AssertionError("the application only reads")


async def read_all(receive: Receive, path: str = "/v1/jobs") -> bytes:
    """Bytes that an application reads through the limit."""
    body = bytearray()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            body.extend(message["body"])
            more = message["more_body"]

    await BodyLimit(application, SETTINGS)({"type": "http", "path": path}, receive, sends_nothing)
    return bytes(body)
