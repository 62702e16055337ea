"""Connections that do not ask, or not to the end: they go, so that others can come."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from api.middleware import connections
from api.middleware.connections import BACKLOG, FILES_RESERVED, BoundedHttp, connections_max
from tests.integration.api.conftest import TIMEOUT_S
from tests.integration.api.serving import HOST, serving

HEAD = b"GET /%s HTTP/1.1\r\nhost: here\r\n"
WHOLE = HEAD + b"\r\n"


class Answers:
    """Answers at once, or, to /later, when it is told to."""

    def __init__(self) -> None:
        self._has_asked = threading.Semaphore(0)
        self._may_answer = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        self._has_asked.release()
        if scope["path"] == "/later":
            await self._may_answer.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    def wait_until_asked(self) -> None:
        """Once for each request."""
        assert self._has_asked.acquire(timeout=TIMEOUT_S)

    def answer(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._may_answer.set)


async def _live(receive: Receive, send: Send) -> None:
    for state in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{state}.complete"})


@contextmanager
def answering() -> Iterator[tuple[Answers, int]]:
    """A server, and its port."""
    application = Answers()
    with serving(application) as url:
        yield application, int(url.rpartition(":")[2])


def connected(stack: ExitStack, port: int, sends: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.create_connection((HOST, port), TIMEOUT_S))
    connection.sendall(sends)
    return connection


def is_answered(connection: socket.socket) -> bool:
    """Whether the request on a connection is answered; False if it is closed instead."""
    try:
        return connection.recv(1000).startswith(b"HTTP/1.1 200")
    except ConnectionResetError:
        return False


def has_ended(connection: socket.socket) -> bool:
    """Waits for a connection's end, which must come without another byte."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sends", [b"", b"GET", HEAD % b"now"])
def test_a_connection_that_does_not_ask_is_not_waited_for(monkeypatch, sends):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with answering() as (_, port), ExitStack() as stack:
        assert has_ended(connected(stack, port, sends))


def test_an_answer_in_two_parts_is_sent_at_once_on_any_listening_socket():
    """asyncio sees to it where the socket names its protocol; this one does not."""
    accepted = []

    class Noting(BoundedHttp):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            sock = transport.get_extra_info("socket")
            accepted.append((sock.proto, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    with serving(Answers(), http=Noting) as url, ExitStack() as stack:
        assert is_answered(connected(stack, int(url.rpartition(":")[2]), WHOLE % b"now"))

    assert accepted == [(0, 1)]


def test_a_later_request_is_waited_for_no_longer_than_the_first(monkeypatch):
    """After its first byte, uvicorn by itself would wait without end."""
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with answering() as (_, port), ExitStack() as stack:
        connection = connected(stack, port, 2 * (WHOLE % b"now") + b"G")

        with connection.makefile("rb") as answers:
            assert answers.read().count(b"HTTP/1.1 200") == 2


def test_an_answer_may_take_longer_than_a_head(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with answering() as (application, port), ExitStack() as stack:
        slow = connected(stack, port, WHOLE % b"later")
        application.wait_until_asked()
        assert has_ended(connected(stack, port)), "a head's time has passed"
        application.answer()

        assert is_answered(slow)


def test_at_the_limit_the_connection_that_waited_longest_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "connections_max", lambda files_max: 3)
    with answering() as (_, port), ExitStack() as stack:
        idle = [connected(stack, port, b"G") for _ in range(3)]
        asking = connected(stack, port, WHOLE % b"now")

        assert is_answered(asking)
        assert has_ended(idle[0])


def test_requests_that_are_being_answered_are_not_given_up_for_another(monkeypatch):
    monkeypatch.setattr(connections, "connections_max", lambda files_max: 2)
    with answering() as (application, port), ExitStack() as stack:
        busy = [connected(stack, port, WHOLE % b"later") for _ in range(2)]
        for _ in busy:
            application.wait_until_asked()
        assert has_ended(connected(stack, port))
        application.answer()

        assert all(is_answered(connection) for connection in busy)


@pytest.mark.parametrize(("files", "expected"), [(1024, 512), (20_000, 18_720), (1_000_000, 998_720)])
def test_a_process_keeps_files_for_other_things_than_connections(files, expected):
    assert connections_max(files) == expected


def test_every_way_to_start_the_api_has_the_backlog_that_files_are_kept_for():
    root = Path(__file__).parents[4]
    starts = ("nightshift/cli/processes/embedded.py", "infra/docker/api.Dockerfile")
    assert FILES_RESERVED > BACKLOG
    assert all(f'"--backlog", "{BACKLOG}"' in (root / start).read_text() for start in starts)


def test_what_is_not_http_gets_the_error_envelope():
    with answering() as (_, port), ExitStack() as stack:
        answer = connected(stack, port, b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n").makefile("rb").read()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_body_that_goes_wrong_after_the_answer_ends_the_connection_quietly(caplog):
    with answering() as (_, port), ExitStack() as stack:
        connection = connected(stack, port, HEAD % b"now" + b"transfer-encoding: chunked\r\n\r\n")
        assert is_answered(connection)
        connection.sendall(b"ZZ\r\n")
        rest = connection.makefile("rb").read()

    assert b"400" not in rest
    assert not [record for record in caplog.records if record.exc_info]
