"""What the rest of the service knows of traces: spans that begin, have children, and end.

A span is told when it is over, with the times of both ends. So work is never wrapped: what a worker or the
engine has noted anyway becomes spans afterwards, away from what is timed. Moments are of `time.monotonic`.

Attributes are those of `nightshift/tracing/attributes.py`: ids, counts and codes. No span has a text that a
tenant sent or was answered, a URL, or an exception's message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Final, Protocol, Self

from nightshift.tracing.context import TraceContext

ACCEPT_SPAN: Final = "accept"  # of a job, from its check to its commit

Value = str | int | float | bool
Attributes = Mapping[str, Value]


class Kind(Enum):
    """As OpenTelemetry has them."""

    INTERNAL = auto()
    SERVER = auto()
    CLIENT = auto()
    PRODUCER = auto()
    CONSUMER = auto()


class Span(Protocol):
    """Thread-safe. As a context manager it ends with the block, which an exception makes an error."""

    @property
    def context(self) -> TraceContext | None:
        """What names it elsewhere. None: there is no trace."""

    def start(
        self,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> "Span":
        """A child. `began_s`: None is now. `link`: a span that it follows from, beside its parent."""

    def rename(self, name: str) -> None: ...

    def set(self, name: str, value: Value) -> None: ...

    def end(
        self,
        attributes: Attributes | None = None,
        *,
        error: str | None = None,
        ended_s: float | None = None,
        is_kept: bool = False,
    ) -> None:
        """Once; later calls change nothing. `error`: a code or a type, which makes it an error: an error is
        recorded whatever the sampler said of its trace, and so is what `is_kept`.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass
class SpanCounts:
    """Of spans that were to be sent, since the process began."""

    sent: int = 0
    failed: int = 0  # the collector was away or refused them
    dropped: int = 0  # the queue was full

    @property
    def lost(self) -> int:
        return self.failed + self.dropped


class Tracer(Protocol):
    """Thread-safe. No call waits, and none fails."""

    @property
    def is_on(self) -> bool:
        """Whether making a span's attributes is worth anything."""

    @property
    def ratio(self) -> float:
        """Of the traces, and of the rows of a traced job, that are sampled."""

    @property
    def counts(self) -> SpanCounts:
        """Those of one that is off stay at 0."""

    def serve(self, name: str, traceparent: str | None) -> Span:
        """For a request to this service, in the trace that its client names, or in a new one."""

    def follow(
        self,
        traceparent: str | None,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> Span:
        """A child of the span that another process has begun. None: nothing is recorded."""

    def close(self) -> None:
        """Send what has ended, within a few seconds."""


class NoSpan:
    """Of what is not traced."""

    context: Final = None

    def start(
        self,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> Span:
        return self

    def rename(self, name: str) -> None: ...

    def set(self, name: str, value: Value) -> None: ...

    def end(
        self,
        attributes: Attributes | None = None,
        *,
        error: str | None = None,
        ended_s: float | None = None,
        is_kept: bool = False,
    ) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NO_SPAN: Final = NoSpan()


class NoTracer:
    """Records nothing, and makes no object."""

    is_on: Final = False
    ratio: Final = 0.0

    @property
    def counts(self) -> SpanCounts:
        return SpanCounts()

    def serve(self, name: str, traceparent: str | None) -> Span:
        return NO_SPAN

    def follow(
        self,
        traceparent: str | None,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> Span:
        return NO_SPAN

    def close(self) -> None: ...


NO_TRACER: Final = NoTracer()
