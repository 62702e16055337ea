"""The outermost middleware: request ids, metrics, a log line and a span per request, and the 500 for
unexpected errors.

Pure ASGI, because a buffering middleware would break the streams. Logs route templates, without ids or
queries.
"""

import logging
import time
from contextlib import ExitStack
from typing import Final

from opentelemetry.trace import Span
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics.http import HttpMetrics
from api.middleware import traces
from api.responses.browsers import wants_page
from api.responses.errors import unexpected_error
from nightshift.jobs.ids import new_id
from nightshift.process.tracing.spans import under

log = logging.getLogger(__name__)

UNROUTED: Final = "(no route)"  # one label for all unknown paths, which callers choose


def answer_headers(request: Request) -> dict[str, str]:
    """Headers that the answer to this request will have, whatever becomes of it."""
    headers: dict[str, str] = request.state.answer_headers
    return headers


def held(request: Request) -> ExitStack:
    """Closed at the end of the answer to this request."""
    found: ExitStack = request.state.held
    return found


class Boundary:
    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = traces.begun(scope)
        with under(span):
            await self._handle(scope, receive, _RequestRecord(scope, send), span)

    async def _handle(self, scope: Scope, receive: Receive, record: "_RequestRecord", span: Span) -> None:
        try:
            await self._app(scope, receive, record.send)
        except SendTimeoutError:
            log.info("client stopped reading", extra={"action": "client_stopped_reading", **record.fields})
        except Exception:
            # Every unexpected error is logged and answered here.
            log.exception("request failed", extra={"action": "request_failed", **record.fields})
            if record.status is None:
                answer = unexpected_error(record.request_id, as_page=wants_page(scope))
                await answer(scope, receive, record.send)
        finally:
            record.held.close()
            self._record(scope, record, span)

    def _record(self, scope: Scope, record: "_RequestRecord", span: Span) -> None:
        seconds = time.monotonic() - record.began_s
        status = record.status or 0
        traces.ended(
            span, method=scope["method"], route=record.route, status=status, request_id=record.request_id
        )
        self._metrics.observe(scope["method"], record.route, status, seconds)
        fields = {"action": "request_answered", "seconds": round(seconds, 4), **record.fields}
        log.info("request answered", extra=fields)


class _RequestRecord:
    """The id, route and status of one request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = new_id("req")
        self.began_s = time.monotonic()
        self.status: int | None = None  # None until the answer has begun
        self._scope = scope
        self._send = send
        state = Request(scope).state
        self.held = ExitStack()
        state.request_id, state.answer_headers, state.held = self.request_id, {}, self.held

    @property
    def route(self) -> str:
        return getattr(self._scope.get("route"), "path", UNROUTED)

    @property
    def fields(self) -> dict[str, object]:
        return {
            "request_id": self.request_id,
            "method": self._scope["method"],
            "route": self.route,
            "status": self.status,
        }

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers["openai-processing-ms"] = str(round(1000 * (time.monotonic() - self.began_s)))
            headers["x-content-type-options"] = "nosniff"
            headers.update(Request(self._scope).state.answer_headers)
        elif not message.get("more_body", False):
            self.held.close()  # before a client that has the whole answer sends its next request
        await self._send(message)
