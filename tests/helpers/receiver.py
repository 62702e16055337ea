"""A web server for tests, on the loopback: it says what it is told to, and remembers what it was sent."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HUNG_UP_WAIT_S = 30.0

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


@dataclass
class Receiver:
    """A running server. `answer` may be changed while it runs."""

    port: int
    answer: Answer
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The address under a name that only a fake name server knows."""
        return f"http://hooks.example.test:{self.port}/here"

    @property
    def numeric_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/here"


@contextmanager
def receiver(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length)
            if len(body) < length:  # its sender died before it was whole
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            known.requests.append(Request(self.path, headers, body))
            try:
                known.answer(self)
            except OSError:
                self.close_connection = True  # the client has hung up, as it should

        def do_GET(self) -> None:
            self.headers["content-length"] = "0"
            self.do_POST()

        def log_message(self, *args: object) -> None:
            """The test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    known = Receiver(server.server_port, answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    """Headers are written with underscores: `retry_after="5"`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def says_nothing_until(event: threading.Event) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        event.wait(HUNG_UP_WAIT_S)

    return answer


def goes_on_for_ever(piece: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(piece)

    return answer
