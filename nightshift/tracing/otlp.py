"""Spans to an OpenTelemetry collector, over OTLP as http/protobuf.

The SDK samples, batches and sends. Its own spans measure as they run; ours are known at their ends, which is
when the SDK gets them, whole.

    end ──► bounded queue ──► the SDK's thread ──► collector
              └─ full: dropped and counted

`OTEL_BSP_MAX_QUEUE_SIZE` bounds the queue, and `OTEL_EXPORTER_OTLP_TIMEOUT` each sending.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from nightshift.tracing.attributes import ERROR_TYPE, PROCESS
from nightshift.tracing.context import TraceContext
from nightshift.tracing.opening import OFF_SAMPLERS, sampler_name, sampling_ratio
from nightshift.tracing.tracer import NO_SPAN, Attributes, Kind, Span, SpanCounts, Value

log = logging.getLogger(__name__)

CLOSE_S: Final = 3.0  # for what is queued, as the process ends
QUEUE_MAX: Final = 2048  # OpenTelemetry's default
SAY_LOST_S: Final = 60.0  # between two lines about lost spans
SDK_SAYS_S: Final = 60.0  # between two lines of the exporter

_SDK_LOGGER: Final = OTLPSpanExporter.__module__
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)  # without a description: messages may quote what was sent
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_DROPPED: Final = TraceFlags(TraceFlags.DEFAULT)
_KINDS: Final = {kind: SpanKind[kind.name] for kind in Kind}


def open_otlp(process: str, environment: Mapping[str, str]) -> "OtlpTracer":
    """Raises what the SDK does of values that it cannot use."""
    logging.getLogger(_SDK_LOGGER).addFilter(_NowAndThen())
    own: dict[str, Value] = {PROCESS: process}
    if not environment.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        own[SERVICE_NAME] = f"nightshift-{process}"
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    # Values that are no numbers are the SDK's to complain of.
    queue_max = environment.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip()
    return OtlpTracer(
        provider,
        exporter,
        ratio=sampling_ratio(environment),
        keeps_errors=sampler_name(environment) not in OFF_SAMPLERS,
        trusts_clients=sampler_name(environment) != "traceidratio",
        queue_max=int(queue_max) if queue_max.isdecimal() else QUEUE_MAX,
    )


class OtlpTracer:
    is_on: Final = True

    def __init__(
        self,
        provider: TracerProvider,
        exporter: SpanExporter,
        *,
        ratio: float = 1.0,
        keeps_errors: bool = True,
        trusts_clients: bool = True,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        """`trusts_clients`: a request joins its client's trace; else it only links to that. A sampler that
        goes by the trace's id must not have it from a client, who would choose what is sampled.
        """
        self.ratio = ratio
        self.resource = _OneResource(provider.resource)
        self.scope = InstrumentationScope("nightshift")
        self.keeps_errors = keeps_errors
        self._trusts_clients = trusts_clients
        self._sampler = provider.sampler
        self._ids = provider.id_generator
        self._outlet = _Outlet(exporter, queue_max)

    def serve(self, name: str, traceparent: str | None) -> Span:
        client = TraceContext.parse(traceparent)
        parent = client if self._trusts_clients else None
        link = None if self._trusts_clients else client
        return self._begin(name, parent, Kind.SERVER, None, link)

    def follow(
        self,
        traceparent: str | None,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> Span:
        parent = TraceContext.parse(traceparent)
        return NO_SPAN if parent is None else self._begin(name, parent, kind, began_s, link)

    def close(self) -> None:
        self._outlet.close()

    @property
    def counts(self) -> SpanCounts:
        return self._outlet.counts

    def new_span_id(self) -> int:
        return self._ids.generate_span_id()

    def put(self, span: ReadableSpan) -> None:
        self._outlet.put(span)

    def _begin(
        self,
        name: str,
        parent: TraceContext | None,
        kind: Kind,
        began_s: float | None,
        link: TraceContext | None,
    ) -> Span:
        remote = None if parent is None else _span_context(parent, is_remote=True)
        trace_id = self._ids.generate_trace_id() if remote is None else remote.trace_id
        above = None if remote is None else trace.set_span_in_context(trace.NonRecordingSpan(remote))
        decided = self._sampler.should_sample(above, trace_id, name, _KINDS[kind])
        context = TraceContext(trace_id, self.new_span_id(), decided.decision is Decision.RECORD_AND_SAMPLE)
        return _OtlpSpan(self, name, context, remote, kind, began_s, link)


class _OtlpSpan:
    __slots__ = (
        "_attributes",
        "_began_s",
        "_context",
        "_has_ended",
        "_kind",
        "_link",
        "_name",
        "_parent",
        "_tracer",
        "context",
    )

    def __init__(
        self,
        tracer: OtlpTracer,
        name: str,
        context: TraceContext,
        parent: SpanContext | None,
        kind: Kind,
        began_s: float | None,
        link: TraceContext | None,
    ) -> None:
        self.context = context
        self._context = _span_context(context, is_remote=False)  # made once: its children have it, too
        self._tracer = tracer
        self._name = name
        self._parent = parent
        self._kind = kind
        self._began_s = time.monotonic() if began_s is None else began_s
        self._link = link
        self._attributes: dict[str, Value] = {}
        self._has_ended = False

    def start(
        self,
        name: str,
        *,
        kind: Kind = Kind.INTERNAL,
        began_s: float | None = None,
        link: TraceContext | None = None,
    ) -> Span:
        """It is sampled as this one is."""
        of = TraceContext(self.context.trace_id, self._tracer.new_span_id(), self.context.is_sampled)
        return _OtlpSpan(self._tracer, name, of, self._context, kind, began_s, link)

    def rename(self, name: str) -> None:
        self._name = name

    def set(self, name: str, value: Value) -> None:
        self._attributes[name] = value

    def end(
        self,
        attributes: Attributes | None = None,
        *,
        error: str | None = None,
        ended_s: float | None = None,
        is_kept: bool = False,
    ) -> None:
        is_kept = (is_kept or error is not None) and self._tracer.keeps_errors
        if self._has_ended or not (self.context.is_sampled or is_kept):
            return
        self._has_ended = True
        if attributes is not None:
            self._attributes.update(attributes)
        if error is not None:
            self._attributes[ERROR_TYPE] = error
        now_s, now_ns = time.monotonic(), time.time_ns()
        ended_s = now_s if ended_s is None else max(ended_s, self._began_s)
        self._tracer.put(
            ReadableSpan(
                self._name,
                self._context if self.context.is_sampled else _span_context(self.context, is_kept=True),
                self._parent,
                self._tracer.resource,
                self._attributes,
                links=() if self._link is None else (trace.Link(_span_context(self._link, is_remote=True)),),
                kind=_KINDS[self._kind],
                status=_UNSET if error is None else _ERROR,
                start_time=now_ns - round((now_s - self._began_s) * 1e9),
                end_time=now_ns - round((now_s - ended_s) * 1e9),
                instrumentation_scope=self._tracer.scope,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error=None if kind is None else kind.__name__)


def _span_context(of: TraceContext, *, is_remote: bool = False, is_kept: bool = False) -> SpanContext:
    """`is_kept`: sent though its trace is not sampled."""
    return SpanContext(of.trace_id, of.span_id, is_remote, _SAMPLED if of.is_sampled or is_kept else _DROPPED)


class _OneResource(Resource):
    """Hashed once: the SDK's encoder asks it of every span, and each time writes the attributes as JSON."""

    def __init__(self, of: Resource) -> None:
        super().__init__(of.attributes, of.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class _Outlet(SpanExporter):
    """The queue of the SDK's processor, with a count of what does not get through it."""

    def __init__(self, exporter: SpanExporter, queue_max: int) -> None:
        self.counts = SpanCounts()
        self._exporter = exporter
        self._queue_max = queue_max
        self._lock = threading.Lock()
        self._waiting = 0  # with those that are being sent
        self._said_lost = 0
        self._says_at_s = 0.0
        self._processor: SpanProcessor = BatchSpanProcessor(self)

    def put(self, span: ReadableSpan) -> None:
        with self._lock:
            if self._waiting >= self._queue_max:
                self.counts.dropped += 1
                return
            self._waiting += 1
        self._processor.on_end(span)

    def close(self) -> None:
        """The SDK would wait for as long as the collector takes."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        with self._lock:
            self.counts.dropped += self._waiting
            self._waiting = 0
        self._say_lost(is_last=True)

    # -- called by the SDK, on its thread

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                # Fewer are waiting than are sent where `close` has given them up.
                count = min(len(spans), self._waiting)
                self._waiting -= count
                if result is SpanExportResult.SUCCESS:
                    self.counts.sent += count
                else:
                    self.counts.failed += count
            self._say_lost()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _say_lost(self, *, is_last: bool = False) -> None:
        with self._lock:
            counts, now_s = self.counts, time.monotonic()
            if counts.lost == self._said_lost or (now_s < self._says_at_s and not is_last):
                return
            self._said_lost, self._says_at_s = counts.lost, now_s + SAY_LOST_S
            lost = {"failed": counts.failed, "dropped": counts.dropped, "sent": counts.sent}
        log.warning("spans lost", extra={"action": "spans_lost", **lost})


class _NowAndThen(logging.Filter):
    """The exporter would say of every batch that the collector is away."""

    def __init__(self) -> None:
        super().__init__()
        self._says_at_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if (now_s := time.monotonic()) < self._says_at_s:
            return False
        self._says_at_s = now_s + SDK_SAYS_S
        return True
