"""All metrics there are, in the sections of their page."""

from typing import Final

from nightshift.process.metrics import engine, processes, scheduler, service, upstreams, worker
from nightshift.process.metrics.family import Family, Process

SECTIONS: Final[dict[str, tuple[Family, ...]]] = (
    service.SECTIONS
    | scheduler.SECTIONS
    | worker.SECTIONS
    | engine.SECTIONS
    | upstreams.SECTIONS
    | processes.SECTIONS
)
EVERY: Final = tuple(family for section in SECTIONS.values() for family in section)


def of_process(process: Process) -> tuple[Family, ...]:
    """The families that a process exports."""
    return tuple(family for family in EVERY if family.process in (process, Process.EVERY))


def sample_names() -> frozenset[str]:
    """The names that a query may use."""
    return frozenset(name for family in EVERY for name in family.samples)
