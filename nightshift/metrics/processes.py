"""Metrics of any process: as `prometheus_client.ProcessCollector` names them, and its spans."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.metrics.family import CounterFamily, Family, GaugeFamily, Process
from nightshift.tracing.tracer import Tracer

_EVERY: Final = Process.EVERY

SPANS: Final = CounterFamily(
    name="nightshift_spans_total",
    help="Spans of traces by what became of them: `sent`, `failed` (the collector is away or refuses them), "
    "`dropped` (the queue was full)",
    labels=("outcome",),
    process=_EVERY,
    closer="`failed` or `dropped` ones grow: traces have gaps ([tracing.md](tracing.md))",
)

OF_PROCESSES: Final[tuple[Family, ...]] = (
    GaugeFamily(
        name="process_resident_memory_bytes",
        help="Resident memory",
        process=_EVERY,
        closer="it grows without end, or comes near the container's limit",
    ),
    GaugeFamily(name="process_virtual_memory_bytes", help="Virtual memory", process=_EVERY),
    CounterFamily(name="process_cpu_seconds_total", help="Time on a CPU", process=_EVERY),
    GaugeFamily(
        name="process_start_time_seconds",
        help="When it started, since the epoch",
        process=_EVERY,
        closer="it changes: the process was started again",
    ),
    GaugeFamily(name="process_open_fds", help="Open files and connections", process=_EVERY),
    GaugeFamily(
        name="process_max_fds",
        help="How many it may have",
        process=_EVERY,
        closer="`process_open_fds` comes near it",
    ),
    SPANS,
)
NAMES: Final = frozenset(family.name for family in OF_PROCESSES)


class SpanMetrics(Collector):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[Metric]:
        spans, counts = SPANS.collected(), self._tracer.counts
        for outcome, count in (
            ("sent", counts.sent),
            ("failed", counts.failed),
            ("dropped", counts.dropped),
        ):
            spans.add_metric((outcome,), count)
        yield spans


def register_process(registry: CollectorRegistry, tracer: Tracer) -> None:
    """What every process shows."""
    ProcessCollector(registry=registry)
    registry.register(SpanMetrics(tracer))


SECTIONS: Final[dict[str, tuple[Family, ...]]] = {"Processes": OF_PROCESSES}
