"""Requests that a proxy could read as other ones, and heads that are too large, on the wire."""

import io
import json
import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.app import create_app
from api.middleware.boundary import HEAD_BYTES_MAX, HEADERS_MAX
from api.middleware.connections import BoundedHttp
from api.services.services import AppSettings
from tests.integration.api.conftest import TIMEOUT_S
from tests.integration.api.serving import HOST, serving

SMUGGLED = b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(params=[BoundedHttp, pytest.param(H11Protocol, marks=pytest.mark.exhaustive)])
def port(request: pytest.FixtureRequest, settings: AppSettings) -> Iterator[int]:
    """The API's, under our connections and under uvicorn's own."""
    with serving(create_app(settings), http=request.param) as url:
        yield int(url.rpartition(":")[2])


def answers(port: int, sends: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer, until the server closes the connection."""
    with socket.create_connection((HOST, port), TIMEOUT_S) as connection:
        connection.sendall(sends)
        with connection.makefile("rb") as stream:
            received = Received(stream.read())
    statuses = []
    while received.tell() < len(received.getvalue()):
        answer = HTTPResponse(received)
        answer.begin()
        statuses.append((answer.status, answer.read()))
    return statuses


class Received(io.BytesIO):
    """All that came from a socket, from which `HTTPResponse` reads one answer after the other."""

    def makefile(self, mode: str) -> "Received":
        return self

    def close(self) -> None:
        """The next answer is read from it."""


def error_code(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


def request(*headers: str, version: str = "1.1", method: str = "POST", path: str = "/v1/jobs") -> bytes:
    lines = (f"{method} {path} HTTP/{version}", "host: here", *headers, "", "")
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    "head",
    [
        request("content-length: 5", "transfer-encoding: chunked"),
        request("transfer-encoding: chunked", "content-length: 0"),
        request("Transfer-Encoding: Chunked", "Content-Length: 5"),
        request("transfer-encoding:\tchunked", "content-length: 5"),
        request("transfer-encoding: chunked", version="1.0"),
        request("transfer-encoding: chunked", "content-length: 5", "connection: keep-alive", version="1.0"),
        request("transfer-encoding: chunked", "content-length: 5", method="GET", path="/healthz"),
        request("content-length: 5", "content-length: 6"),
        request("content-length: 5, 6"),
        request("content-length : 5"),
        request("content-length: +5"),
    ],
)
def test_a_request_whose_end_is_ambiguous_is_refused_and_ends_the_connection(port, head):
    [(status, body)] = answers(port, head + b"0\r\n\r\n" + SMUGGLED)

    assert (status, error_code(body) if body.startswith(b"{") else "invalid_http") == (400, "invalid_http")


@pytest.mark.parametrize("coding", ["gzip, chunked", "xchunked", "chunked, chunked", "identity"])
def test_a_transfer_coding_that_is_not_understood_ends_the_connection(port, coding):
    [(status, _)] = answers(port, request(f"transfer-encoding: {coding}") + b"0\r\n\r\n" + SMUGGLED)

    assert status in (400, 501)


def test_one_way_to_say_where_a_body_ends_is_served_and_so_is_the_next_request(port):
    last = SMUGGLED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    chunked = request("transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
    counted = request("content-length: 2", "content-length: 2") + b"{}"

    assert [status for status, _ in answers(port, chunked + counted + last)] == [401, 401, 200]


def test_headers_up_to_the_limit_are_served_and_one_more_is_refused(port):
    def asking(count: int) -> bytes:
        fillers = [f"x-{number}: y" for number in range(count - 2)]  # beside host and connection
        return request(*fillers, "connection: close", method="GET", path="/healthz")

    assert answers(port, asking(HEADERS_MAX))[0][0] == 200
    [(status, body)] = answers(port, asking(HEADERS_MAX + 1) + SMUGGLED)
    assert (status, error_code(body)) == (431, "headers_too_large")
    assert str(HEADERS_MAX) in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("name", ["x: ", "cookie: session=", "authorization: Bearer "])
def test_a_head_that_is_too_large_is_refused(port, name):
    asking = request(name + "y" * HEAD_BYTES_MAX, method="GET", path="/healthz")

    [(status, body)] = answers(port, asking + SMUGGLED)

    assert (status, error_code(body)) == (431, "headers_too_large")


def test_a_target_counts_as_part_of_the_head(port):
    asking = request(method="GET", path="/healthz?" + "y" * HEAD_BYTES_MAX)

    assert answers(port, asking + SMUGGLED)[0][0] == 431


def test_a_head_without_an_end_is_refused_as_too_large(settings):
    with serving(create_app(settings)) as url:
        port = int(url.rpartition(":")[2])
        [(status, body)] = answers(port, b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * HEAD_BYTES_MAX)

    assert (status, error_code(body)) == (431, "headers_too_large")
