"""A receiver of webhooks on this machine, which keeps what it gets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final

BODY_BYTES_MAX: Final = 65536  # an event has ids and counts


@dataclass
class Receiver:
    """`received`: body and headers (lower-case names) of each event."""

    url: str
    received: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of the loopback, which answers 204."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length") or 0), BODY_BYTES_MAX)
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append((self.rfile.read(length), headers))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep standard error for the command's own lines."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}/")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
