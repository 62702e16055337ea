"""A reverse proxy that alters what a right server answers, so that a check can be seen to fail."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx

TIMEOUT_S = 60.0
NOT_FORWARDED = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    def with_json(self, data: object) -> "Reply":
        return replace(self, content=json.dumps(data).encode())


@dataclass(frozen=True)
class Asked:
    """A request as the client sent it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Forward = Callable[[Asked], Reply]
Alteration = Callable[[Asked, Forward], Reply]


@contextmanager
def answering(answer: Callable[[Asked], Reply | None]) -> Iterator[str]:
    """A server that is a function; None closes the connection. Yields the URL of its /v1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(Asked(self.command, self.path, headers, body))
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_request

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def altering(base_url: str, alter: Alteration) -> Iterator[str]:
    """A proxy to the server at `base_url` (with /v1). Yields its own."""
    root = base_url.removesuffix("/v1")
    with httpx.Client(base_url=root, timeout=TIMEOUT_S, trust_env=False) as client:

        def forward(request: Asked) -> Reply:
            headers = {name: value for name, value in request.headers.items() if name not in NOT_FORWARDED}
            headers["accept-encoding"] = "identity"
            answer = client.request(request.method, request.path, headers=headers, content=request.body)
            kept = {name: value for name, value in answer.headers.items() if name not in NOT_FORWARDED}
            return Reply(answer.status_code, kept, answer.content)

        with answering(lambda request: alter(request, forward)) as url:
            yield url


def setting(path: str, method: str = "GET|POST|DELETE", **fields: object) -> Alteration:
    """Sets fields of the JSON answers on paths that match."""
    return changing(path, lambda data: data | fields, method)


def changing(path: str, change: Callable[[Any], Any], method: str = "GET|POST|DELETE") -> Alteration:
    """Changes the JSON of answers with a status below 300 on paths that match."""

    def alter(request: Asked, forward: Forward) -> Reply:
        reply = forward(request)
        is_meant = re.fullmatch(path, request.path) and re.fullmatch(method, request.method)
        is_json = reply.headers.get("content-type", "").startswith("application/json")
        return reply.with_json(change(reply.json)) if is_meant and is_json and reply.status < 300 else reply

    return alter


def replacing(path: str, old: bytes, new: bytes) -> Alteration:
    """Replaces bytes of the answers on paths that match."""

    def alter(request: Asked, forward: Forward) -> Reply:
        reply = forward(request)
        return (
            replace(reply, content=reply.content.replace(old, new))
            if re.fullmatch(path, request.path)
            else reply
        )

    return alter


def refusing_as(change: Callable[[Reply], Reply]) -> Alteration:
    """Changes every refusal."""

    def alter(request: Asked, forward: Forward) -> Reply:
        reply = forward(request)
        return change(reply) if reply.status >= 400 else reply

    return alter


def wrapped(change: Callable[[Reply], Reply]) -> Alteration:
    return lambda request, forward: change(forward(request))


def without(header: str) -> Callable[[Reply], Reply]:
    return lambda reply: replace(
        reply, headers={name: value for name, value in reply.headers.items() if name != header}
    )


def accepting(field: bytes) -> Alteration:
    """Requests with this field are answered as if they were right."""

    def alter(request: Asked, forward: Forward) -> Reply:
        reply = forward(request)
        is_meant = field in request.body or field.decode() in request.path
        return Reply(200, reply.headers, b"{}") if is_meant and reply.status >= 400 else reply

    return alter
