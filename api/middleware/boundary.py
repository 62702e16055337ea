"""The outermost middleware: an id, a measurement and a log line for every request, and a 500 as last resort.

Pure ASGI: a middleware that buffers would break the streams. Paths are logged as route templates, so neither
ids nor queries reach the log.
"""

import logging
import time
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import HttpMetrics
from api.responses.errors import unexpected_error
from nightshift.jobs.ids import new_id

log = logging.getLogger(__name__)

UNROUTED: Final = "(no route)"  # one label for all unknown paths: callers choose them


class Boundary:
    """ASGI middleware, outermost."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _RequestRecord(scope, send)
        try:
            await self._app(scope, receive, record.send)
        except Exception:
            # The edge: an unexpected error is logged here, once, and answered.
            log.exception("request failed", extra={"action": "request_failed", **record.fields})
            if record.status is None:
                await unexpected_error(record.request_id)(scope, receive, record.send)
        finally:
            self._record(scope, record)

    def _record(self, scope: Scope, record: "_RequestRecord") -> None:
        seconds = time.monotonic() - record.began_s
        status = record.status or 0
        self._metrics.observe(scope["method"], record.route, status, seconds)
        fields = {"action": "request_answered", "seconds": round(seconds, 4), **record.fields}
        log.info("request answered", extra=fields)


class _RequestRecord:
    """What is known of one request: its id, route and status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = new_id("req")
        self.began_s = time.monotonic()
        self.status: int | None = None  # None until the answer has begun
        self._scope = scope
        self._send = send
        Request(scope).state.request_id = self.request_id

    @property
    def route(self) -> str:
        return getattr(self._scope.get("route"), "path", UNROUTED)

    @property
    def fields(self) -> dict[str, object]:
        """Log fields of this request."""
        return {
            "request_id": self.request_id,
            "method": self._scope["method"],
            "route": self.route,
            "status": self.status,
        }

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.request_id
        await self._send(message)
