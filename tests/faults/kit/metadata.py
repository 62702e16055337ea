"""Metadata servers of the three clouds, over HTTP: they give no notice until a test says so.

Paths, headers, status codes and bodies are those of the clouds' documentation; a request they would refuse is
refused here.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

DRIP_S: Final = 0.02  # from one byte to the next
MACHINE: Final = "spot-vm-1"  # what Azure calls this machine
AT: Final = "2026-11-21T18:00:00Z"
AT_AZURE: Final = "Sat, 21 Nov 2026 18:00:00 GMT"


EVENT_ID: Final = "602d9444-d2cd-49c7-8624-8643e7171297"


class Trouble(Enum):
    """Faults of a metadata server that does not answer as it should."""

    FAILS = auto()  # 500
    HANGS = auto()
    BABBLES = auto()  # 200, and nothing that makes sense
    NEVER_ENDS = auto()  # nor does what it says
    DRIPS = auto()  # the head of an answer that does not end
    HANGS_UP = auto()
    REDIRECTS = auto()


@dataclass
class Metadata:
    """Facts that the cloud tells of this machine; changed by tests, read by the server."""

    url: str = ""
    is_interrupted: bool = False
    is_rebalanced: bool = False  # AWS alone
    concerns: str = MACHINE  # whom Azure's event is about
    event: str = "Preempt"  # of what kind it is
    at: str = AT  # when AWS's interruption is due
    at_azure: str = AT_AZURE
    odd_events: list[object] = field(default_factory=list)  # what Azure lists before its event
    names_others: bool = False  # whether Azure's event is about more machines than this one
    trouble: Trouble | None = None
    acknowledged: list[str] = field(default_factory=list)  # events of Azure
    tokens: set[str] = field(default_factory=set)  # of AWS, still good
    requests: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_asks(self, count: int, timeout_s: float = 20.0) -> None:
        """Waits until this many more requests have been answered."""
        with self.changed:
            goal = len(self.requests) + count
            assert self.changed.wait_for(lambda: len(self.requests) >= goal, timeout_s)

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, str]:
        match method, path.partition("?")[0]:
            case "PUT", "/latest/api/token" if headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                self.tokens.add(token := secrets.token_hex(8))
                return 200, token
            case "GET", "/latest/meta-data/spot/instance-action":
                action = json.dumps({"action": "terminate", "time": self.at})
                return self._aws(headers, action if self.is_interrupted else None)
            case "GET", "/latest/meta-data/events/recommendations/rebalance":
                return self._aws(headers, json.dumps({"noticeTime": AT}) if self.is_rebalanced else None)
            case "GET", "/computeMetadata/v1/instance/preempted" if (
                headers.get("Metadata-Flavor") == "Google"
            ):
                return 200, "TRUE" if self.is_interrupted else "FALSE"
            case "GET", "/metadata/scheduledevents" if headers.get("Metadata") == "true":
                return 200, json.dumps(self._azure())
            case "GET", "/metadata/instance/compute/name" if headers.get("Metadata") == "true":
                return 200, MACHINE
            case "POST", "/metadata/scheduledevents" if headers.get("Metadata") == "true":
                self.acknowledged += [event["EventId"] for event in json.loads(body)["StartRequests"]]
                return 200, ""
        return 403, "refused"

    def _aws(self, headers: Any, body: str | None) -> tuple[int, str]:
        if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, "no token"
        return (404, "not found") if body is None else (200, body)

    def _azure(self) -> dict[str, Any]:
        event = {
            "EventId": EVENT_ID,
            "EventType": self.event,
            "ResourceType": "VirtualMachine",
            "Resources": ["another-vm", self.concerns] if self.names_others else [self.concerns],
            "EventStatus": "Scheduled",
            "NotBefore": self.at_azure,
            "EventSource": "Platform",
        }
        return {"DocumentIncarnation": 1, "Events": [*self.odd_events, event] if self.is_interrupted else []}


@contextmanager
def serving() -> Iterator[Metadata]:
    """One machine's metadata, for whichever cloud is asked for."""
    metadata, is_over = Metadata(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            match metadata.trouble:
                case None:
                    self._reply(*metadata.answer(self.command, self.path, self.headers, body))
                case Trouble.FAILS:
                    self._reply(500, "broken")
                case Trouble.HANGS:
                    is_over.wait()
                case Trouble.BABBLES:
                    self._reply(200, "[" * 100_000)
                case Trouble.NEVER_ENDS:
                    self.send_response(200)
                    self.end_headers()
                    with suppress(OSError):
                        while not is_over.is_set():
                            self.wfile.write(b" " * 4096)
                case Trouble.DRIPS:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nServer: ")
                    with suppress(OSError):
                        while not is_over.wait(DRIP_S):
                            self.wfile.write(b"s")
                case Trouble.HANGS_UP:
                    self.close_connection = True
                case Trouble.REDIRECTS:
                    self.send_response(302)
                    self.send_header("Location", "http://127.0.0.1:1/")
                    self.end_headers()
            with metadata.changed:
                metadata.requests.append(self.path)
                metadata.changed.notify_all()

        do_PUT = do_POST = do_GET

        def _reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(OSError):  # who asked may have gone
                self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            """Not written: no test reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        metadata.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="metadata", daemon=True)
        thread.start()
        try:
            yield metadata
        finally:
            is_over.set()
            server.shutdown()
            thread.join()
