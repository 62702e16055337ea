"""A way to an S3 server on which things go wrong: an HTTP server before it that refuses, swallows, damages or
loses what it is told to, and passes on everything else.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from tests.integration.servers import HOST, S3Server

PASSED_ON = frozenset({"etag", "content-type", "content-range", "last-modified", "accept-ranges"})


@dataclass(frozen=True)
class Refused:
    """The server answers with an error of its own."""

    status: int
    code: str


@dataclass(frozen=True)
class Swallowed:
    """The request is taken at so many bytes a second and never answered. 0: none of its body is read."""

    bytes_per_s: int = 0


@dataclass(frozen=True)
class Damaged:
    """The answer's bytes are not the object's; its length and its ETag are."""


@dataclass(frozen=True)
class AnswerLost:
    """The request is carried out, and the connection breaks before anybody hears of it."""


Fault = Refused | Swallowed | Damaged | AnswerLost


@dataclass
class FaultyS3:
    """The way to one server. Requests are met by the faults that were set for them, in that order."""

    behind: S3Server
    port: int = 0
    seen: list[str] = field(default_factory=list)  # "PUT /bucket/key", every try of every request
    _faults: list[tuple[str, Fault, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def set(self, method: str, fault: Fault, times: int = 1_000_000) -> None:
        """So many of the next requests with this method meet the fault."""
        with self._lock:
            self._faults.append((method, fault, times))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def server(self) -> S3Server:
        """What clients are told: the same server, by way of this one."""
        there = self.behind
        return S3Server(
            there.name,
            f"http://{HOST}:{self.port}",
            there.access_key,
            there.secret_key,
            there.has_conditional_put,
        )

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append(f"{method} {path}")
            for number, (faulty, fault, times) in enumerate(self._faults):
                if faulty == method and times > 0:
                    self._faults[number] = (faulty, fault, times - 1)
                    return fault
        return None


@contextmanager
def faulty_s3(behind: S3Server) -> Iterator[FaultyS3]:
    """A faulty way to a server, without faults so far."""
    front = FaultyS3(behind)
    with httpx.Client(base_url=behind.endpoint, trust_env=False, timeout=30) as client:
        server = ThreadingHTTPServer((HOST, 0), _handler(front, client))
        server.daemon_threads = True
        front.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield front
        finally:
            front.over.set()
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(front: FaultyS3, client: httpx.Client) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            fault = front.fault_for(self.command, self.path)
            if isinstance(fault, Swallowed):
                self._swallow(length, fault.bytes_per_s)
                return
            body = self.rfile.read(length)
            if isinstance(fault, Refused):
                self._answer(fault.status, {}, _error(fault.code))
                return
            answer = self._passed_on(body)
            if isinstance(fault, AnswerLost):
                self.close_connection = True
                return
            data = answer.content
            if isinstance(fault, Damaged) and answer.is_success and data:
                data = bytes([data[0] ^ 1]) + data[1:]
            self._answer(answer.status_code, answer.headers, data)

        def _passed_on(self, body: bytes) -> httpx.Response:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            return client.request(self.command, self.path, content=body, headers=headers)

        def _answer(self, status: int, headers: Any, data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() in PASSED_ON:
                    self.send_header(name, value)
            is_head = self.command == "HEAD" and status == 200
            self.send_header("content-length", headers["content-length"] if is_head else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _swallow(self, length: int, bytes_per_s: int) -> None:
            self.close_connection = True
            while length > 0 and bytes_per_s and not front.over.wait(0.05):
                step = min(length, max(1, bytes_per_s // 20))
                length -= len(self.rfile.read(step)) or length
            front.over.wait()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: what was asked stands in `seen`."""

    for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    return Handler


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
