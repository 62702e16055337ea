"""An OpenTelemetry collector for tests: it takes spans over OTLP as http/protobuf, and remembers them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.helpers.receiver import Answer, Receiver, receiver, says

TRACES_PATH = "/v1/traces"


@dataclass(frozen=True)
class SeenSpan:
    name: str
    process: str  # api, scheduler or worker
    kind: str  # SERVER, PRODUCER …
    trace_id: str
    span_id: str
    parent_id: str  # "" of a root
    links: tuple[str, ...]  # span ids
    is_error: bool
    attributes: Mapping[str, object]
    start_ns: int
    end_ns: int


@dataclass
class Collector:
    receiver: Receiver

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.receiver.port}"

    @property
    def variables(self) -> dict[str, str]:
        """Variables for processes that are to send their spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    @property
    def bodies(self) -> list[bytes]:
        """All that came, whatever it is."""
        return [request.body for request in list(self.receiver.requests)]

    @property
    def spans(self) -> list[SeenSpan]:
        sent = [request.body for request in list(self.receiver.requests) if request.path == TRACES_PATH]
        return [span for body in sent for span in _spans(ExportTraceServiceRequest.FromString(body))]

    def of_trace(self, trace_id: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def collector(answer: Answer = says(200)) -> Iterator[Collector]:
    with receiver(answer) as server:
        yield Collector(server)


def tree(
    spans: Sequence[SeenSpan],
    shown: Callable[[SeenSpan], str] = lambda span: span.name,
    *,
    below: str | None = None,
) -> list[str]:
    """The spans below a span, indented, by name. `below`: its id; None: below all that are not there."""
    known = {span.span_id for span in spans}

    def lines(parent_ids: set[str], depth: int) -> Iterator[str]:
        for span in sorted(spans, key=shown):
            if span.parent_id in parent_ids:
                yield "  " * depth + shown(span)
                yield from lines({span.span_id}, depth + 1)

    return list(lines({span.parent_id for span in spans} - known if below is None else {below}, 0))


def _spans(sent: ExportTraceServiceRequest) -> Iterator[SeenSpan]:
    for of_resource in sent.resource_spans:
        resource = {
            attribute.key: attribute.value.string_value for attribute in of_resource.resource.attributes
        }
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield _seen(span, resource.get("nightshift.process", ""))


def _seen(span: SpanMessage, process: str) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        process=process,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes={attribute.key: _value(attribute.value) for attribute in span.attributes},
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


def _value(value: object) -> object:
    return getattr(value, value.WhichOneof("value"))  # type: ignore[attr-defined]
