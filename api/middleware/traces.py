"""The span of a request, in its client's trace: what the request submits becomes part of it.

Only requests that may carry work have one: those that look at it are many, and would say nothing of a job.
"""

from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span
from starlette.datastructures import Headers
from starlette.types import Scope

from nightshift.process.tracing.attributes import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, REQUEST_ID
from nightshift.process.tracing.spans import NO_SPAN, Value, end, is_on, serve

if TYPE_CHECKING:  # a FastAPI of before has none
    from fastapi.telemetry import TelemetryConfig

TRACEPARENT: Final = "traceparent"
METHODS: Final = ("POST",)  # that carry work

# FastAPI has telemetry of its own, which reads the same variables: spans and logs with paths, queries and the
# messages of exceptions.
FASTAPI_TELEMETRY: Final["TelemetryConfig"] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def begun(scope: Scope) -> Span:
    """The span of a request, named by its client's `traceparent` if that is valid and there is one."""
    if not is_on() or scope["method"] not in METHODS:
        return NO_SPAN
    sent = Headers(scope=scope).getlist(TRACEPARENT)
    return serve(scope["method"], sent[0] if len(sent) == 1 else None)


def ended(span: Span, *, method: str, route: str, status: int, request_id: str) -> None:
    """`status`: 0 where the client has gone before there was one."""
    if span is NO_SPAN:
        return
    span.update_name(f"{method} {route}")
    attributes: dict[str, Value] = {HTTP_METHOD: method, HTTP_ROUTE: route, REQUEST_ID: request_id}
    if status:
        attributes[HTTP_STATUS] = status
    end(span, attributes, error=str(status) if status >= 500 else None)
