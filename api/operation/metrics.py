"""The queue as the database has it, read at each scrape: counted events could be lost, rows are not."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from api.metrics.queue import queue_metrics
from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.fleet.workers import ExitCause
from nightshift.lifecycle.recovery import LEASES_EXPIRED, crash_counter
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.metrics import service
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import Owed

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
        jobs, outbox = service.JOBS.collected(), service.OUTBOX_RINGS.collected()
        with self._store.snapshot() as tx:
            now = tx.now()
            queue = queue_metrics(
                tx.figures.waiting(), tx.workers.alive(now - ALIVE_WITHIN), tx.figures.latest(), now
            )
            for found in tx.jobs.backlog():
                jobs.add_metric((found.kind, found.state), found.jobs)
            owed = tx.deliveries.owed()
            outbox.add_metric((), tx.outbox.length())
            counted = tx.counters.values()
        return [*queue, jobs, outbox, *_webhooks(owed, now), *_sums(counted)]


def _webhooks(owed: Owed, now: datetime) -> list[Metric]:
    deliveries, oldest = service.DELIVERIES.collected(), service.DELIVERIES_OLDEST.collected()
    deliveries.add_metric((DeliveryState.PENDING,), owed.pending)
    deliveries.add_metric((DeliveryState.DEAD,), owed.dead)
    age_s = (now - owed.oldest_at).total_seconds() if owed.oldest_at is not None else 0.0
    oldest.add_metric((), max(0.0, age_s))
    return [deliveries, oldest]


def _sums(counted: Mapping[str, int]) -> list[Metric]:
    """Counters of the whole service, 0 from the start: alerts on growth need a first value."""
    sums: list[Metric] = []
    for name, family in service.SUMS.items():
        total = family.collected()
        total.add_metric((), counted.get(name, 0))
        sums.append(total)
    expired = service.LEASES_EXPIRED.collected()
    expired.add_metric((), counted.get(LEASES_EXPIRED, 0))
    crashes = service.WORKER_CRASHES.collected()
    for cause in CRASHES:
        crashes.add_metric((cause,), counted.get(crash_counter(cause), 0))
    return [*sums, expired, crashes]
