"""The middleware that every request passes first, in this order.

    Boundary        an id, a span, metrics and a log line; the 500 for unexpected errors
    RequestHeads    refuses a head that is too large or ambiguous
    HeadRequests    answers HEAD as GET, without the body

Pure ASGI, because a buffering middleware would break the streams. Logs route templates, without ids or
queries.
"""

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.responses.errors import AmbiguousLength, HeadTooLarge, error_response, unexpected_error, wants_page
from nightshift.jobs.ids import new_id
from nightshift.process.metrics import service
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.processes import register_process
from nightshift.process.tracing.attributes import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, REQUEST_ID
from nightshift.process.tracing.spans import NO_SPAN, Value, end, is_on, serve, under

if TYPE_CHECKING:  # earlier versions of FastAPI have none
    from fastapi.telemetry import TelemetryConfig

log = logging.getLogger(__name__)

UNROUTED: Final = "(no route)"  # one label for all unknown paths, which callers choose

# From a cached look-up to the longest chat answer.
LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

# A client may invent methods, and each would be a label's value for as long as the process lives.
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"

HEADERS_MAX: Final = 100  # as Apache's; browsers and the official clients send about 20
HEAD_BYTES_MAX: Final = 16 * 1024  # as Node's; h11 reads on until so many bytes if the end is missing

# FastAPI has telemetry of its own, which reads the same variables: spans and logs with paths, queries and the
# messages of exceptions.
FASTAPI_TELEMETRY: Final["TelemetryConfig"] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}

_ROUTED: Final = ("route", "endpoint", "path_params")  # what the router adds to a scope


class HttpMetrics:
    """Requests and latencies by method, route and status. The API is one process per container, so one
    registry suffices.
    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self._requests = service.HTTP_REQUESTS.counted(self.registry)
        self._seconds = service.HTTP_SECONDS.counted(self.registry, LATENCY_BUCKETS_S)
        register_process(self.registry)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else OTHER
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class RequestRecord:
    """One request: its id, route and status, and what lasts as long as its answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = new_id("req")
        self.began_s = time.monotonic()
        self.status: int | None = None  # None until the answer has begun
        self.answer_headers: dict[str, str] = {}  # that the answer will have, whatever becomes of it
        self.held = ExitStack()  # closed at the end of the answer
        self.body_bytes = 0  # as it was sent
        self._scope = scope
        self._send = send
        scope.setdefault("state", {}).update(request_id=self.request_id, record=self)

    @property
    def route(self) -> str:
        return getattr(self._scope.get("route"), "path", UNROUTED)

    @property
    def fields(self) -> dict[str, object]:
        method = self._scope["method"]
        return {"request_id": self.request_id, "method": method, "route": self.route, "status": self.status}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers["openai-processing-ms"] = str(round(1000 * (time.monotonic() - self.began_s)))
            headers["x-content-type-options"] = "nosniff"
            headers.update(self.answer_headers)
        elif not message.get("more_body", False):
            self.held.close()  # before a client that has the whole answer sends its next request
        await self._send(message)


class Boundary:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(scope, send)
        # Only requests that carry work have a span: reads are many, and would say nothing of a job.
        span = _begin_span(scope) if scope["method"] == "POST" and is_on() else NO_SPAN
        with under(span):
            try:
                await self._app(scope, receive, record.send)
            except SendTimeoutError:
                log.info(
                    "client stopped reading", extra={"action": "client_stopped_reading", **record.fields}
                )
            except Exception:
                # Every unexpected error is logged and answered here.
                log.exception("request failed", extra={"action": "request_failed", **record.fields})
                if record.status is None:
                    answer = unexpected_error(record.request_id, as_page=wants_page(scope))
                    await answer(scope, receive, record.send)
            finally:
                record.held.close()
                self._note(scope["method"], record, span)

    def _note(self, method: str, record: RequestRecord, span: Span) -> None:
        seconds = time.monotonic() - record.began_s
        if span is not NO_SPAN:
            _end_span(span, method, record)
        self._metrics.observe(method, record.route, record.status or 0, seconds)
        fields = {"action": "request_answered", "seconds": round(seconds, 4), **record.fields}
        log.info("request answered", extra=fields)


def _begin_span(scope: Scope) -> Span:
    """A span in the trace that the client's `traceparent` names, if there is one and it is valid."""
    sent = Headers(scope=scope).getlist("traceparent")
    return serve(scope["method"], sent[0] if len(sent) == 1 else None)


def _end_span(span: Span, method: str, record: RequestRecord) -> None:
    status = record.status or 0  # 0: the client has gone before there was one
    span.update_name(f"{method} {record.route}")
    attributes: dict[str, Value] = {
        HTTP_METHOD: method,
        HTTP_ROUTE: record.route,
        REQUEST_ID: record.request_id,
    }
    if status:
        attributes[HTTP_STATUS] = status
    end(span, attributes, error=str(status) if status >= 500 else None)


class RequestHeads:
    """ASGI middleware that refuses a head that is too large, or leaves open where the request ends.

    A proxy and this server could read such a request as two different ones (RFC 9112, 6.3), so the connection
    ends with the answer. It is checked here and not in the HTTP implementation, so that it holds for each.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)


def _refusal(scope: Scope) -> HeadTooLarge | AmbiguousLength | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(headers) > HEADERS_MAX:
        return HeadTooLarge(
            f"The request has {len(headers)} headers, more than the {HEADERS_MAX} accepted here."
        )
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if target + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES_MAX:
        return HeadTooLarge(
            f"The request's target and headers have more than the {HEAD_BYTES_MAX} bytes accepted here."
        )
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return AmbiguousLength()
        if scope["http_version"] == "1.0":
            return AmbiguousLength("HTTP/1.0 has no Transfer-Encoding: send a Content-Length.")
    return None


class _HeadSent(Exception):
    """The headers are sent; the rest of the answer need not be made."""


class HeadRequests:
    """ASGI middleware: HEAD on every GET route has the status and headers of GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _HeadSent

        as_get = dict(scope, method="GET")  # a copy: the server must still know that no body follows
        try:
            await self._app(as_get, receive, send_head)
        except* _HeadSent:  # a stream raises it from within a group
            pass
        finally:
            scope.update({name: as_get[name] for name in _ROUTED if name in as_get})
