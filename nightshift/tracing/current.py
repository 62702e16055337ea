"""The span that the running code is part of: what is submitted joins its trace, and log lines name it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from nightshift.tracing.context import TraceContext
from nightshift.tracing.tracer import NO_SPAN, Span

_current: Final[ContextVar[Span]] = ContextVar("span", default=NO_SPAN)


@contextmanager
def under(span: Span) -> Iterator[None]:
    """Make it the current one, in this thread or task and the threads it waits for."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Span:
    return _current.get()


def current_context() -> TraceContext | None:
    return _current.get().context


def current_traceparent() -> str | None:
    """To be stored with what the current request submits."""
    context = _current.get().context
    return None if context is None else context.traceparent
