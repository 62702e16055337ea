"""Begins and ends OpenTelemetry's spans, if this process records any.

The tracer is the process's own and not OpenTelemetry's global one: no library adds spans with what a tenant
sent. Exceptions are recorded by their type alone, since messages may quote that. Moments are of
`time.monotonic`: what a worker or the engine has noted anyway becomes spans afterwards.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nightshift.process.tracing.attributes import ERROR_TYPE

ACCEPT_SPAN: Final = "accept"  # a job from its check to its commit
NO_SPAN: Final[Span] = trace.INVALID_SPAN
TRACEPARENT_CHARS: Final = 55  # in version 00
CLOCK_STEP_NS: Final = 100_000_000  # a larger one between the clocks: the wall clock was set

Value = str | int | float | bool
Attributes = Mapping[str, Value]

_W3C: Final = TraceContextTextMapPropagator()
_ERROR: Final = Status(StatusCode.ERROR)  # without a description


@dataclass
class _Process:
    """`trusts_clients`: a request joins its client's trace; else it only links to that."""

    tracer: Tracer | None = None
    trusts_clients: bool = True
    wall_ahead_ns: int = 0  # the wall clock minus the monotonic clock


_process: Final = _Process()


def record_with(tracer: Tracer | None, *, trusts_clients: bool = True) -> None:
    """Records this process's spans with `tracer` from now on. None: it records none."""
    _process.tracer, _process.trusts_clients = tracer, trusts_clients


def is_on() -> bool:
    """Whether making a span's attributes is worth anything."""
    return _process.tracer is not None


def serve(name: str, traceparent: str | None) -> Span:
    """The span of a request to this service, in the trace that its client names, or in a new one."""
    client = parsed(traceparent)
    if _process.trusts_clients:
        return _begin(name, client, SpanKind.SERVER)
    return _begin(name, None, SpanKind.SERVER, link=client)


def follow(
    traceparent: str | None,
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    began_s: float | None = None,
    link: SpanContext | None = None,
) -> Span:
    """A child of the span that another process has begun. None: nothing is recorded."""
    parent = parsed(traceparent) if is_on() else None
    return NO_SPAN if parent is None else _begin(name, parent, kind, began_s, link)


def child(name: str, *, parent: Span | None = None, began_s: float | None = None) -> Span:
    """A child of a span of this process; None: of the current one."""
    if not is_on():
        return NO_SPAN
    parent = trace.get_current_span() if parent is None else parent
    return _begin(name, parent.get_span_context(), began_s=began_s) if parent.is_recording() else NO_SPAN


def end(
    span: Span,
    attributes: Attributes | None = None,
    *,
    error: str | None = None,
    ended_s: float | None = None,
) -> None:
    """Ends a span; later calls change nothing. `error`: a code or a type, which makes it an error."""
    if not span.is_recording():
        return
    if attributes:
        span.set_attributes(attributes)
    if error is not None:
        span.set_attribute(ERROR_TYPE, error)
        span.set_status(_ERROR)
    span.end(_wall_ns(ended_s))


@contextmanager
def under(span: Span) -> Iterator[None]:
    """Makes it the current one, in this thread or task and the threads it waits for."""
    if span is NO_SPAN:
        yield
        return
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        yield


@contextmanager
def lasting(span: Span) -> Iterator[None]:
    """Makes it the current one, and ends it with the block, which an exception makes an error."""
    if span is NO_SPAN:
        yield
        return
    with under(span):
        try:
            yield
        except BaseException as error:
            end(span, error=type(error).__name__)
            raise
        end(span)


def current_context() -> SpanContext | None:
    """The header that names the current span to another process. None: there is no trace."""
    if not is_on():
        return None
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def current_traceparent() -> str | None:
    """The header that is stored with what the current request submits."""
    context = current_context()
    return None if context is None else traceparent_of(context)


def traceparent_of(context: SpanContext) -> str:
    trace_id, span_id = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    return f"00-{trace_id}-{span_id}-{context.trace_flags:02x}"


def parsed(traceparent: str | None) -> SpanContext | None:
    """The span context of a `traceparent`; None for one that is not valid. `tracestate` is a caller's free
    text, and not kept.
    """
    if traceparent is None:
        return None
    extracted = _W3C.extract({"traceparent": traceparent}, Context())
    context = trace.get_current_span(extracted).get_span_context()
    return context if context.is_valid else None


def _begin(
    name: str,
    parent: SpanContext | None,
    kind: SpanKind = SpanKind.INTERNAL,
    began_s: float | None = None,
    link: SpanContext | None = None,
) -> Span:
    if _process.tracer is None:
        return NO_SPAN
    above = Context()
    if parent is not None:
        above = trace.set_span_in_context(trace.NonRecordingSpan(parent), above)
    return _process.tracer.start_span(
        name,
        above,
        kind,
        links=None if link is None else [Link(link)],
        start_time=_wall_ns(began_s),
        record_exception=False,
        set_status_on_exception=False,
    )


def _wall_ns(moment_s: float | None) -> int:
    """A moment (None: now) in the wall clock's time, by one difference of the clocks for all spans: a span
    that is read off two clocks could end before it begins.
    """
    now_ns = time.monotonic_ns()
    ahead_ns = time.time_ns() - now_ns
    if abs(ahead_ns - _process.wall_ahead_ns) > CLOCK_STEP_NS:
        _process.wall_ahead_ns = ahead_ns
    return _process.wall_ahead_ns + (now_ns if moment_s is None else round(moment_s * 1e9))
