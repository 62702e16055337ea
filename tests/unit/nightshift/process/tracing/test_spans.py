"""Recorded spans, by OpenTelemetry's SDK with an exporter in memory, and those that are not recorded."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode

from nightshift.process.logs import JsonFormatter
from nightshift.process.tracing.attributes import JOB
from nightshift.process.tracing.spans import (
    NO_SPAN,
    TRACEPARENT_CHARS,
    child,
    current_context,
    current_traceparent,
    end,
    follow,
    is_on,
    lasting,
    parsed,
    record_with,
    serve,
    traceparent_of,
    under,
)
from tests.helpers.fakes import a_new_job

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"

Recording = Callable[..., InMemorySpanExporter]


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Begins to record, into what it returns."""
    providers: list[TracerProvider] = []

    def record(sampler: Sampler = DEFAULT_ON, *, trusts_clients: bool = True) -> InMemorySpanExporter:
        exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        providers.append(provider)
        record_with(provider.get_tracer("nightshift"), trusts_clients=trusts_clients)
        return exporter

    yield record
    record_with(None)
    for provider in providers:
        provider.shutdown()


@pytest.fixture
def recorded(recording: Recording) -> InMemorySpanExporter:
    return recording()


def finished(recorded: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    return recorded.get_finished_spans()


def test_a_request_joins_its_clients_trace_and_its_children_its_own(recorded: InMemorySpanExporter) -> None:
    served = serve("POST", CLIENT)
    end(child("accept", parent=served), {JOB: "job_1"})
    served.update_name("POST /v1/jobs")
    end(served)

    accept, post = finished(recorded)
    assert (post.name, post.kind) == ("POST /v1/jobs", SpanKind.SERVER)
    assert post.parent is not None
    assert traceparent_of(post.parent) == CLIENT
    assert accept.parent is not None
    assert (accept.parent.span_id, accept.context.trace_id) == (post.context.span_id, int(TRACE_ID, 16))
    assert dict(accept.attributes or {}) == {JOB: "job_1"}


def test_without_a_valid_traceparent_a_request_begins_a_trace_and_what_follows_is_not_recorded(
    recorded: InMemorySpanExporter,
) -> None:
    nothing = (None, "", "nonsense", f"00-{'0' * 32}-{SPAN_ID}-01")
    for sent in nothing:
        end(serve("POST", sent))
        assert follow(sent, "plan") is NO_SPAN

    roots = finished(recorded)
    assert [root.parent for root in roots] == [None] * len(nothing)


def test_another_process_goes_on_with_the_decision_about_the_trace(recorded: InMemorySpanExporter) -> None:
    unsampled = follow(UNSAMPLED, "plan")
    with under(unsampled):
        assert current_traceparent() == traceparent_of(unsampled.get_span_context())
    assert child("read", parent=unsampled) is NO_SPAN
    end(unsampled)
    end(follow(CLIENT, "plan", link=parsed(CLIENT)))

    [span] = finished(recorded)
    assert span.context.trace_flags.sampled
    assert [traceparent_of(link.context) for link in span.links] == [CLIENT]


def test_an_error_says_no_more_than_its_type(recorded: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), lasting(follow(CLIENT, "read")):
        raise ValueError("secret")

    [read] = finished(recorded)
    assert (read.status.status_code, read.status.description, read.events) == (StatusCode.ERROR, None, ())
    assert dict(read.attributes or {}) == {"error.type": "ValueError"}


def test_a_client_decides_about_its_trace_where_the_sampler_asks_the_parent(recording: Recording) -> None:
    recorded = recording(ParentBasedTraceIdRatio(0.0))
    for sent in (CLIENT, UNSAMPLED, None):
        end(serve("POST", sent))

    assert [span.context.trace_id for span in finished(recorded)] == [int(TRACE_ID, 16)]


def test_a_client_cannot_choose_to_be_sampled_by_the_id_of_its_trace(recording: Recording) -> None:
    lowest = f"00-{2**64:032x}-{SPAN_ID}-01"  # a ratio sampler takes the lowest of the last 64 bits
    assert TraceIdRatioBased(1e-9).should_sample(None, 2**64, "").decision.is_sampled()
    recorded = recording(TraceIdRatioBased(1e-9), trusts_clients=False)
    for _ in range(100):
        end(serve("POST", lowest))
    assert finished(recorded) == ()

    recorded = recording(trusts_clients=False)
    end(serve("POST", lowest))
    [span] = finished(recorded)
    assert span.parent is None
    assert [traceparent_of(link.context) for link in span.links] == [lowest]


def test_times_are_those_that_were_noted(recorded: InMemorySpanExporter) -> None:
    end(follow(CLIENT, "queue", began_s=100.25), ended_s=101.0)
    end(follow(CLIENT, "nothing", began_s=101.0), ended_s=101.0)

    for span, lasted_ns in zip(finished(recorded), (750_000_000, 0), strict=True):
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == lasted_ns


def test_a_span_ends_once(recorded: InMemorySpanExporter) -> None:
    with lasting(follow(CLIENT, "part")) as _:
        pass
    part = follow(CLIENT, "part")
    with lasting(part):
        end(part, error="gone")

    assert [span.status.status_code for span in finished(recorded)] == [StatusCode.UNSET, StatusCode.ERROR]


def test_a_job_that_is_submitted_under_a_span_joins_its_trace(recorded: InMemorySpanExporter) -> None:
    with under(follow(CLIENT, "POST")) as _:
        traceparent = a_new_job().traceparent
    assert traceparent is not None
    assert traceparent.startswith(f"00-{TRACE_ID}-")
    assert len(traceparent) == TRACEPARENT_CHARS
    assert a_new_job().traceparent is None


def test_a_log_line_under_a_span_has_its_ids_and_no_other_has(recorded: InMemorySpanExporter) -> None:
    span = follow(CLIENT, "POST")
    with under(span):
        assert line()["trace_id"] == TRACE_ID
        assert line()["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert "trace_id" not in line()


def line() -> dict[str, object]:
    record = logging.LogRecord("nightshift", logging.INFO, "", 0, "said", (), None)
    fields: dict[str, object] = json.loads(JsonFormatter("api").format(record))
    return fields


def test_a_new_thread_has_no_span_unless_it_is_given_its_context(recorded: InMemorySpanExporter) -> None:
    with under(follow(CLIENT, "POST")), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_context).result() is None
        assert pool.submit(copy_context().run, current_traceparent).result() == current_traceparent()


def test_while_traces_are_off_there_is_no_span_and_a_clients_trace_goes_nowhere() -> None:
    assert not is_on()
    with under(serve("POST", CLIENT)):
        assert child("accept") is NO_SPAN
        assert a_new_job().traceparent is None


@pytest.mark.parametrize(
    "malformed",
    [
        "00",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{'٤' * 32}-{SPAN_ID}-01",
        "DROP TABLE job",
        "\0" * 55,
    ],
)
def test_a_malformed_traceparent_is_ignored(malformed: str) -> None:
    assert parsed(malformed) is None
