"""A way to an S3 server on which things go wrong: an HTTP server before it that refuses, swallows, damages,
cuts short, slows down or loses what it is told to, and passes on everything else.

    with faulty_s3(moto, seed=7) as front:
        front.set("PUT", Refused(503, "SlowDown"), times=2)
        front.set(ANY, CutShort(), path="/segments/", share=0.3)     # three in ten, by the seed
"""

import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from xml.sax.saxutils import escape

import httpx

from tests.integration.servers import HOST, S3Server

ANY: Final = "any method"
ALWAYS: Final = 1_000_000  # times
PASSED_ON: Final = frozenset({"etag", "content-type", "content-range", "last-modified", "accept-ranges"})
TICK_S: Final = 0.05


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
class Mistaken:
    """The answer is another object's, as its ETag says: one was written in between, or a condition is not
    known here.
    """


@dataclass(frozen=True)
class TagsWritten:
    """The answer's entity tags are written otherwise, in headers and in XML: `{}` is the bare tag. None: they
    are left out.
    """

    form: str | None


@dataclass(frozen=True)
class Rewritten:
    """The answer's body is another."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True)
class CutShort:
    """The answer says how long it is, and ends in the middle; with a reset, if so wished."""

    is_reset: bool = False


@dataclass(frozen=True)
class Slow:
    """The answer begins late, and comes at so many bytes a second. 0: all at once."""

    delay_s: float = 0.0
    bytes_per_s: int = 0


@dataclass(frozen=True)
class AnswerLost:
    """The request is carried out, and the connection breaks before the answer."""


@dataclass(frozen=True)
class Unreachable:
    """The connection breaks at once, and nothing is carried out."""


@dataclass(frozen=True)
class Pretended:
    """The server says that it is done, and does nothing."""


@dataclass(frozen=True)
class WrongClock:
    """The answer's Date is so far off."""

    ahead_s: float


Fault = (
    Refused
    | Swallowed
    | Damaged
    | Mistaken
    | TagsWritten
    | Rewritten
    | CutShort
    | Slow
    | AnswerLost
    | Unreachable
    | Pretended
    | WrongClock
)


@dataclass
class _Rule:
    """Which requests meet a fault."""

    method: str
    fault: Fault
    times: int
    path: str
    share: float

    def covers(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in (ANY, method) and self.path in path


@dataclass
class FaultyS3:
    """The way to one server. Requests are met by the faults that were set for them, in that order."""

    behind: S3Server
    seed: int = 0
    port: int = 0
    seen: list[str] = field(default_factory=list)  # "PUT /bucket/key", every try of every request
    met: list[str] = field(default_factory=list)  # of them, those that met a fault
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _healed: threading.Event = field(default_factory=threading.Event)  # of the faults there are now

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def set(
        self, method: str, fault: Fault, times: int = ALWAYS, *, path: str = "", share: float = 1.0
    ) -> None:
        """Lets as many of the next requests with this method meet the fault, if their path contains `path`,
        and if the seed decides so.
        """
        with self._lock:
            self._rules.append(_Rule(method, fault, times, path, share))

    def heal(self) -> None:
        """No more faults. Connections of requests that wait are broken."""
        with self._lock:
            self._rules.clear()
            self.met.clear()
            self._healed.set()
            self._healed = threading.Event()

    def server(self) -> S3Server:
        """The address for clients."""
        there = self.behind
        return S3Server(
            there.name,
            f"http://{HOST}:{self.port}",
            there.access_key,
            there.secret_key,
            there.has_conditional_put,
        )

    def fault_for(self, method: str, path: str) -> tuple[Fault | None, threading.Event]:
        """The fault that a request meets, and what is set once that is over."""
        with self._lock:
            self.seen.append(f"{method} {path}")
            for rule in self._rules:
                if rule.covers(method, path) and self._draw.random() < rule.share:
                    rule.times -= 1
                    self.met.append(f"{method} {path}")
                    return rule.fault, self._healed
            return None, self._healed


@contextmanager
def faulty_s3(behind: S3Server, seed: int = 0) -> Iterator[FaultyS3]:
    """Without faults so far."""
    front = FaultyS3(behind, seed)
    with httpx.Client(base_url=behind.endpoint, trust_env=False, timeout=30) as client:
        server = _FrontServer(front, client)
        front.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield front
        finally:
            front.heal()
            server.shutdown()
            server.server_close()
            thread.join()


class _FrontServer(ThreadingHTTPServer):
    """Answers in the place of the server behind `front`, which `client` asks."""

    daemon_threads = True

    def __init__(self, front: FaultyS3, client: httpx.Client) -> None:
        super().__init__((HOST, 0), _Handler)
        self.front = front
        self.client = client


class _Handler(BaseHTTPRequestHandler):
    server: _FrontServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a header and a body are two writes
    _ahead_s = 0.0

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header."""
        return super().date_time_string((timestamp or time.time()) + self._ahead_s)

    def _handle(self) -> None:
        fault, healed = self.server.front.fault_for(self.command, self.path)
        length = int(self.headers.get("content-length") or 0)
        with suppress(ConnectionError):  # the client has given up
            self._meet(fault, healed, length)

    def _meet(self, fault: Fault | None, healed: threading.Event, length: int) -> None:
        if isinstance(fault, Unreachable):
            self._hang_up()
            return
        if isinstance(fault, Swallowed):
            self._swallow(length, fault.bytes_per_s, healed)
            return
        body = self.rfile.read(length)
        if isinstance(fault, Refused):
            self._answer(fault.status, {}, _error(fault.code))
            return
        if isinstance(fault, Pretended):
            self._answer(204, {}, b"")
            return
        answer = self._passed_on(body)
        match fault:
            case WrongClock(ahead_s):
                self._ahead_s = ahead_s
                self._answer(answer.status_code, answer.headers, answer.content)
            case AnswerLost():
                self._hang_up()
            case Damaged() if answer.is_success and answer.content:
                damaged = bytes([answer.content[0] ^ 1]) + answer.content[1:]
                self._answer(answer.status_code, answer.headers, damaged)
            case Mistaken() if answer.is_success:
                headers = {**answer.headers, "etag": f'"{"0" * 32}"'}
                self._answer(answer.status_code, headers, answer.content)
            case TagsWritten(form):
                headers, content = _with_tags(form, answer)
                self._answer(answer.status_code, headers, content)
            case Rewritten(change):
                self._answer(answer.status_code, answer.headers, change(answer.content))
            case CutShort(is_reset):
                self._answer(answer.status_code, answer.headers, answer.content, cut=True)
                self._hang_up(reset=is_reset)
            case Slow(delay_s, bytes_per_s):
                healed.wait(delay_s)
                self._answer(answer.status_code, answer.headers, answer.content, bytes_per_s=bytes_per_s)
            case _:
                self._answer(answer.status_code, answer.headers, answer.content)

    def _passed_on(self, body: bytes) -> httpx.Response:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        return self.server.client.request(self.command, self.path, content=body, headers=headers)

    def _answer(
        self,
        status: int,
        headers: Mapping[str, str],
        data: bytes,
        *,
        cut: bool = False,
        bytes_per_s: int = 0,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() in PASSED_ON:
                self.send_header(name, value)
        is_head = self.command == "HEAD" and status == 200
        self.send_header("content-length", headers["content-length"] if is_head else str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        data = data[: len(data) // 2] if cut else data
        step = max(1, round(bytes_per_s * TICK_S)) if bytes_per_s else max(1, len(data))
        for begin in range(0, len(data), step):
            self.wfile.write(data[begin : begin + step])
            if bytes_per_s:
                time.sleep(TICK_S)  # its pace is what this is about

    def _swallow(self, length: int, bytes_per_s: int, healed: threading.Event) -> None:
        while length > 0 and bytes_per_s and not healed.wait(TICK_S):
            step = min(length, max(1, round(bytes_per_s * TICK_S)))
            length -= len(self.rfile.read(step)) or length
        healed.wait()
        self._hang_up()

    def _hang_up(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:  # a close without lingering sends RST; a pending read would prevent it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what was asked stands in `seen`."""


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as told</Message></Error>".encode()


def _with_tags(form: str | None, answer: httpx.Response) -> tuple[Mapping[str, str], bytes]:
    """An answer's headers and body with its entity tags in another form."""
    headers = dict(answer.headers)
    tag = headers.pop("etag", None)
    if form is None:
        return headers, re.sub(rb"<ETag>.*?</ETag>", b"", answer.content)
    if tag is not None:
        headers["etag"] = form.format(tag.strip('"'))

    def written(tag: re.Match[bytes]) -> bytes:
        return f"<ETag>{escape(form.format(tag[1].decode()))}</ETag>".encode()

    quote = rb"(?:&quot;|&#34;|\")?"
    return headers, re.sub(rb"<ETag>" + quote + rb"([^<&\"]*)" + quote + rb"</ETag>", written, answer.content)
