"""What is recorded of spans, and what becomes of them where the collector does not take them."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode

from nightshift.tracing import otlp
from nightshift.tracing.context import TraceContext
from nightshift.tracing.otlp import OtlpTracer
from nightshift.tracing.tracer import NO_SPAN, Kind

CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, True)
UNSAMPLED = TraceContext(CLIENT.trace_id, CLIENT.span_id, False)


class Exporter(SpanExporter):
    """Keeps what it gets; `goes_on` holds it up."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.result = SpanExportResult.SUCCESS
        self.is_asked = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.goes_on.wait()
        self.spans += spans
        return self.result


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.goes_on.set()


Opened = Callable[..., OtlpTracer]


@pytest.fixture
def opened(exporter: Exporter) -> Iterator[Opened]:
    tracers: list[OtlpTracer] = []

    def open_it(sampler: Sampler = DEFAULT_ON, **options: object) -> OtlpTracer:
        provider = TracerProvider(sampler=sampler, resource=Resource({}), shutdown_on_exit=False)
        tracers.append(OtlpTracer(provider, exporter, **options))  # type: ignore[arg-type]
        return tracers[-1]

    yield open_it
    exporter.goes_on.set()
    for tracer in tracers:
        tracer.close()


def test_a_request_joins_its_clients_trace_and_its_children_its_own(
    opened: Opened, exporter: Exporter
) -> None:
    tracer = opened()
    served = tracer.serve("POST", CLIENT.traceparent)
    served.start("accept", kind=Kind.PRODUCER).end({"count": 3})
    served.rename("POST /v1/jobs")
    served.end()
    tracer.close()

    accept, post = exporter.spans
    assert (post.name, post.kind, post.context.trace_id) == (
        "POST /v1/jobs",
        SpanKind.SERVER,
        CLIENT.trace_id,
    )
    assert post.parent is not None
    assert (post.parent.span_id, post.parent.is_remote) == (CLIENT.span_id, True)
    assert accept.parent is not None
    assert (accept.parent.span_id, accept.parent.is_remote) == (post.context.span_id, False)
    assert (accept.kind, dict(accept.attributes or {})) == (SpanKind.PRODUCER, {"count": 3})


@pytest.mark.parametrize("sent", [None, "", "nonsense", f"00-{'0' * 32}-{'0' * 16}-01"])
def test_without_a_valid_traceparent_a_request_begins_a_trace(
    sent: str | None, opened: Opened, exporter: Exporter
) -> None:
    tracer = opened()
    tracer.serve("POST", sent).end()
    tracer.close()

    [root] = exporter.spans
    assert root.parent is None
    assert root.context.is_valid


def test_what_follows_no_span_is_not_recorded(opened: Opened) -> None:
    tracer = opened()

    assert tracer.follow(None, "plan") is NO_SPAN
    assert tracer.follow("nonsense", "plan") is NO_SPAN


def test_another_process_goes_on_with_the_decision_about_the_trace(
    opened: Opened, exporter: Exporter
) -> None:
    tracer = opened()
    tracer.follow(UNSAMPLED.traceparent, "plan").end()
    tracer.follow(CLIENT.traceparent, "plan", link=CLIENT).end()
    tracer.close()

    [span] = exporter.spans
    assert span.context.trace_flags.sampled
    assert [link.context.span_id for link in span.links] == [CLIENT.span_id]


def test_an_error_is_recorded_in_a_trace_that_is_not_sampled_and_says_no_more_than_its_type(
    opened: Opened, exporter: Exporter
) -> None:
    tracer = opened()
    shard = tracer.follow(UNSAMPLED.traceparent, "shard")
    shard.start("row").end()
    shard.start("row").end(error="500")
    with pytest.raises(ValueError, match="secret"), shard.start("read"):
        raise ValueError("secret")
    shard.end(is_kept=True)
    tracer.close()

    row, read, kept = exporter.spans
    assert {span.context.trace_id for span in exporter.spans} == {CLIENT.trace_id}
    assert row.parent is not None
    assert row.parent.span_id == read.parent.span_id == kept.context.span_id  # type: ignore[union-attr]
    assert (row.status.status_code, row.status.description) == (StatusCode.ERROR, None)
    assert dict(read.attributes or {}) == {"error.type": "ValueError"}
    assert (read.status.description, read.events) == (None, ())
    assert kept.status.status_code is StatusCode.UNSET


def test_where_the_operator_wants_no_traces_errors_are_none_either(
    opened: Opened, exporter: Exporter
) -> None:
    tracer = opened(ALWAYS_OFF, keeps_errors=False)
    tracer.follow(CLIENT.traceparent, "shard").end(error="500", is_kept=True)
    tracer.close()

    assert exporter.spans == []


def test_a_client_decides_about_its_trace_where_the_sampler_asks_the_parent(
    opened: Opened, exporter: Exporter
) -> None:
    tracer = opened(ParentBasedTraceIdRatio(0.0))
    tracer.serve("POST", CLIENT.traceparent).end()
    tracer.serve("POST", UNSAMPLED.traceparent).end()
    tracer.serve("POST", None).end()
    tracer.close()

    assert [span.context.trace_id for span in exporter.spans] == [CLIENT.trace_id]


def test_a_client_cannot_choose_to_be_sampled_by_the_id_of_its_trace(
    opened: Opened, exporter: Exporter
) -> None:
    lowest = TraceContext(2**64, 1, True)  # a ratio sampler takes the lowest of the last 64 bits
    assert TraceIdRatioBased(1e-9).should_sample(None, lowest.trace_id, "").decision.is_sampled()

    tracer = opened(TraceIdRatioBased(1e-9), trusts_clients=False)
    for _ in range(100):
        tracer.serve("POST", lowest.traceparent).end()
    served = tracer.serve("POST", lowest.traceparent)
    served.end(error="500")
    tracer.close()

    [span] = exporter.spans
    assert span.context.trace_id != lowest.trace_id
    assert [link.context.trace_id for link in span.links] == [lowest.trace_id]


def test_times_are_those_that_were_noted(opened: Opened, exporter: Exporter) -> None:
    tracer = opened()
    tracer.follow(CLIENT.traceparent, "queue", began_s=100.25).end(ended_s=101.0)
    tracer.follow(CLIENT.traceparent, "reversed", began_s=100.0).end(ended_s=99.0)
    tracer.close()

    queue, reversed_ = exporter.spans
    assert queue.start_time is not None
    assert queue.end_time is not None
    assert queue.end_time - queue.start_time == pytest.approx(750_000_000, abs=1000)
    assert reversed_.start_time == reversed_.end_time


def test_a_span_ends_once(opened: Opened, exporter: Exporter) -> None:
    tracer = opened()
    with tracer.follow(CLIENT.traceparent, "part") as span:
        span.end({"files": 1})
    tracer.close()

    [part] = exporter.spans
    assert dict(part.attributes or {}) == {"files": 1}


def test_spans_beyond_the_queue_are_dropped_and_counted_and_no_caller_waits(
    opened: Opened, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(otlp, "CLOSE_S", 0.01)
    exporter.goes_on.clear()
    tracer = opened(ALWAYS_ON, queue_max=10)
    for _ in range(4):
        tracer.follow(CLIENT.traceparent, "row").end()
    assert exporter.is_asked.wait(30)
    for _ in range(96):
        tracer.follow(CLIENT.traceparent, "row").end()

    assert tracer.counts.dropped == 90
    tracer.close()  # the collector still has not answered
    assert tracer.counts.dropped == 100
    [said] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (said.getMessage(), vars(said)["dropped"]) == ("spans lost", 100)


def test_spans_that_the_collector_refuses_are_counted(
    opened: Opened, exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    exporter.result = SpanExportResult.FAILURE
    tracer = opened()
    tracer.follow(CLIENT.traceparent, "row").end()
    tracer.close()

    assert (tracer.counts.failed, tracer.counts.sent) == (1, 0)
    assert "spans lost" in caplog.text
