"""The span of a request, in its client's trace: what the request submits becomes part of it.

Only requests that may carry work have one: those that look at it are many, and would say nothing of a job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.types import Scope

from nightshift.tracing.attributes import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, REQUEST_ID
from nightshift.tracing.current import under
from nightshift.tracing.tracer import NO_SPAN, Span, Tracer, Value

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


def begun(tracer: Tracer, scope: Scope) -> Span:
    """The span of a request, named by its client's `traceparent` if that is valid and there is one."""
    if not tracer.is_on or scope["method"] not in METHODS:
        return NO_SPAN
    sent = Headers(scope=scope).getlist(TRACEPARENT)
    return tracer.serve(scope["method"], sent[0] if len(sent) == 1 else None)


@contextmanager
def current(span: Span) -> Iterator[None]:
    """Around the handling of its request."""
    if span is NO_SPAN:
        yield
        return
    with under(span):
        yield


def end(span: Span, *, method: str, route: str, status: int, request_id: str) -> None:
    """`status`: 0 where the client has gone before there was one."""
    if span is NO_SPAN:
        return
    span.rename(f"{method} {route}")
    attributes: dict[str, Value] = {HTTP_METHOD: method, HTTP_ROUTE: route, REQUEST_ID: request_id}
    if status:
        attributes[HTTP_STATUS] = status
    span.end(attributes, error=str(status) if status >= 500 else None)
