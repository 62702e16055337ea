"""Metrics for Prometheus: answered requests, and the queue as the database has it.

The API is one process per container, so one registry suffices. The queue's state is read at each scrape:
counted events could be lost, rows are not.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import ExitCause
from nightshift.lifecycle.recovery import crash_counter
from nightshift.store import Store

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# From a cached look-up to the longest chat answer.
LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

CRASHES: Final = tuple(cause for cause in ExitCause if cause.is_crash)

# The database's counters for the whole service, by name.
SUMS: Final = {
    "tokens_redone": "Tokens generated and lost with a worker, as last told by it, and so generated again",
    "rows_reused": "Rows of bulk jobs that have the result of another row with the same request",
    "rows_dead": "Rows that are run no more because they kill workers",
    "writes_fenced": "Checkpoints that the database refused because their lease was lost",
    "messages_dropped": "Messages that workers found in the queues and that were none of ours",
    "objects_collected": "Objects deleted because nothing referred to them any more",
}


class HttpMetrics:
    """Counts and latencies of requests, by method, route and status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "nightshift_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "nightshift_http_request_seconds",
            "From the request's head to the last byte of its answer",
            ("method", "route"),
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format. Blocks on the database."""
        return generate_latest(self.registry)


class DatabaseMetrics(Collector):
    """Reads the queue's state from the database at each scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registering needs no database."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("nightshift_database_up", "1 if the database answers")
        try:
            yield from self._counts()
            up.add_metric((), 1)
        except DatabaseUnavailable:
            up.add_metric((), 0)
        yield up

    def _counts(self) -> list[Metric]:
        jobs = GaugeMetricFamily("nightshift_jobs", "Unfinished jobs", labels=("kind", "state"))
        shards = GaugeMetricFamily("nightshift_shards_queued", "Unclaimed shards", labels=("kind",))
        deliveries = GaugeMetricFamily("nightshift_deliveries", "Webhook deliveries", labels=("state",))
        outbox = GaugeMetricFamily("nightshift_outbox_rings", "Rings not sent yet")
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
    for name, means in SUMS.items():
        sums.append(CounterMetricFamily(f"nightshift_{name}", means, value=counted.get(name, 0)))
    crashes = CounterMetricFamily("nightshift_worker_crashes", "Workers lost, by cause", labels=("cause",))
    for cause in CRASHES:
        crashes.add_metric((cause,), counted.get(crash_counter(cause), 0))
    return [*sums, crashes]
