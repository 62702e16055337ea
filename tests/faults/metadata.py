"""Metadata servers of the three clouds, over HTTP: they give no notice until a test says so.

Paths, headers, status codes and bodies are those of the clouds' documentation; a request they would refuse is
refused here.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

MACHINE: Final = "spot-vm-1"  # what Azure calls this machine
AT: Final = "2026-11-21T18:00:00Z"
AT_AZURE: Final = "Sat, 21 Nov 2026 18:00:00 GMT"


@dataclass
class Metadata:
    """What the cloud says of this machine; changed by tests, read by the server."""

    url: str = ""
    is_interrupted: bool = False
    is_rebalanced: bool = False  # AWS alone
    concerns: str = MACHINE  # whom Azure's event is about
    event: str = "Preempt"  # of what kind it is
    is_broken: bool = False  # answers 500
    tokens: set[str] = field(default_factory=set)  # of AWS, still good
    asked: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_asks(self, count: int, timeout_s: float = 20.0) -> None:
        """Until so many more requests have been answered."""
        with self.changed:
            goal = len(self.asked) + count
            assert self.changed.wait_for(lambda: len(self.asked) >= goal, timeout_s)

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        if self.is_broken:
            return 500, "broken"
        match method, path.partition("?")[0]:
            case "PUT", "/latest/api/token" if headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                self.tokens.add(token := secrets.token_hex(8))
                return 200, token
            case "GET", "/latest/meta-data/spot/instance-action":
                action = json.dumps({"action": "terminate", "time": AT})
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
        return 403, "refused"

    def _aws(self, headers: Any, body: str | None) -> tuple[int, str]:
        if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, "no token"
        return (404, "not found") if body is None else (200, body)

    def _azure(self) -> dict[str, Any]:
        event = {
            "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
            "EventType": self.event,
            "ResourceType": "VirtualMachine",
            "Resources": ["another-vm", self.concerns],
            "EventStatus": "Scheduled",
            "NotBefore": AT_AZURE,
            "EventSource": "Platform",
        }
        return {"DocumentIncarnation": 1, "Events": [event] if self.is_interrupted else []}


@contextmanager
def serving() -> Iterator[Metadata]:
    """One machine's metadata, for whichever cloud is asked for."""
    metadata = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            status, body = metadata.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())
            with metadata.changed:
                metadata.asked.append(self.path)
                metadata.changed.notify_all()

        def log_message(self, *arguments: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        metadata.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="metadata", daemon=True)
        thread.start()
        try:
            yield metadata
        finally:
            server.shutdown()
            thread.join()
