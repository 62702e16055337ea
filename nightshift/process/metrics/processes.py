"""Metrics of any process: as `prometheus_client.ProcessCollector` names them."""

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, Process

_gauge: Final = partial(GaugeFamily, process=Process.EVERY)
_counter: Final = partial(CounterFamily, process=Process.EVERY)

OF_PROCESSES: Final[tuple[Family, ...]] = (
    _gauge(
        name="process_resident_memory_bytes",
        help="Resident memory",
        closer="it grows without end, or comes near the container's limit",
    ),
    _gauge(name="process_virtual_memory_bytes", help="Virtual memory"),
    _counter(name="process_cpu_seconds_total", help="Time on a CPU"),
    _gauge(
        name="process_start_time_seconds",
        help="When it started, since the epoch",
        closer="it changes: the process was started again",
    ),
    _gauge(name="process_open_fds", help="Open files and connections"),
    _gauge(
        name="process_max_fds",
        help="How many it may have",
        closer="`process_open_fds` comes near it",
    ),
)
NAMES: Final = frozenset(family.name for family in OF_PROCESSES)


def register_process(registry: CollectorRegistry) -> None:
    """Registers the metrics that every process shows."""
    ProcessCollector(registry=registry)


SECTIONS: Final[dict[str, tuple[Family, ...]]] = {"Processes": OF_PROCESSES}
