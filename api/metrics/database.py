"""The queue as the database has it, read at each scrape: counted events could be lost, rows are not."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import ExitCause
from nightshift.lifecycle.recovery import crash_counter
from nightshift.metrics import service
from nightshift.store import Store

CRASHES: Final = tuple(cause for cause in ExitCause if cause.is_crash)


class DatabaseMetrics(Collector):
    """Reads the queue's state from the database at each scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registering needs no database."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        up = service.DATABASE_UP.collected()
        try:
            yield from self._counts()
            up.add_metric((), 1)
        except DatabaseUnavailable:
            up.add_metric((), 0)
        yield up

    def _counts(self) -> list[Metric]:
        jobs, shards = service.JOBS.collected(), service.SHARDS_QUEUED.collected()
        deliveries, outbox = service.DELIVERIES.collected(), service.OUTBOX_RINGS.collected()
        with self._store.snapshot() as tx:
            for found in tx.jobs.backlog():
                jobs.add_metric((found.kind, found.state), found.jobs)
            for kind, count in tx.shards.queued().items():
                shards.add_metric((kind,), count)
            for state, count in tx.deliveries.counts().items():
                deliveries.add_metric((state,), count)
            outbox.add_metric((), tx.outbox.length())
            counted = tx.counters.values()
        return [jobs, shards, deliveries, outbox, *_sums(counted)]


def _sums(counted: Mapping[str, int]) -> list[Metric]:
    """Counters of the whole service, 0 from the start: alerts on growth need a first value."""
    sums: list[Metric] = []
    for name, family in service.SUMS.items():
        total = family.collected()
        total.add_metric((), counted.get(name, 0))
        sums.append(total)
    crashes = service.WORKER_CRASHES.collected()
    for cause in CRASHES:
        crashes.add_metric((cause,), counted.get(crash_counter(cause), 0))
    return [*sums, crashes]
