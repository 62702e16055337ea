"""Metrics of any process: as `prometheus_client.ProcessCollector` names them."""

from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, Process

_EVERY: Final = Process.EVERY

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
)
NAMES: Final = frozenset(family.name for family in OF_PROCESSES)


def register_process(registry: CollectorRegistry) -> None:
    """Registers the metrics that every process shows."""
    ProcessCollector(registry=registry)


SECTIONS: Final[dict[str, tuple[Family, ...]]] = {"Processes": OF_PROCESSES}
