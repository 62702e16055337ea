"""The queue, Redis and the disk as metrics, read at each scrape: counts could be lost, rows are not."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.errors import DatabaseUnavailable, QueueUnavailable
from nightshift.fleet.figures import ALIVE_WITHIN, ServiceFigures
from nightshift.fleet.workers import ExitCause, Worker, WorkerState
from nightshift.jobs.capacity.backlog import Backlog, Group, WaitingJob, by_group
from nightshift.jobs.capacity.demand import Pool, demand
from nightshift.jobs.capacity.forecasts import slack_s
from nightshift.lifecycle.recovery import LEASES_EXPIRED, crash_counter
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.metrics import service
from nightshift.process.metrics.family import model_labels
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import Owed

CRASHES: Final = tuple(cause for cause in ExitCause if cause.is_crash)


class DatabaseMetrics(Collector):
    """Reads the queue's state from the database at each scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Describes nothing, so that registering needs no database."""
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
            for unfinished in tx.jobs.backlog():
                jobs.add_metric((unfinished.kind, unfinished.state), unfinished.jobs)
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


def queue_metrics(
    waiting: Sequence[WaitingJob], workers: Sequence[Worker], recorded: ServiceFigures | None, now: datetime
) -> list[Metric]:
    """The queue, and how many workers it needs.

    `workers`: those that are alive. `recorded`: the latest figures of the service, for the paces of models.
    """
    backlogs = by_group(waiting)
    longest_first = sorted(backlogs, key=lambda group: -backlogs[group].queued)
    labels = model_labels([group.model for group in longest_first])
    paces = recorded.rows_per_busy_s if recorded else {}
    ready = [worker for worker in workers if worker.state is WorkerState.READY]
    warm_counts = Counter(model for worker in ready for model in worker.warm)
    return [
        *_backlog_metrics(backlogs, labels, now),
        _wanted(demand(waiting, paces, now, set(warm_counts)), labels),
        _slack(slack_s(waiting, paces, now, warm_counts)),
        _workers(workers),
    ]


def _backlog_metrics(
    backlogs: Mapping[Group, Backlog], labels: Mapping[str, str], now: datetime
) -> list[Metric]:
    folded: dict[tuple[str, str, str, str], Backlog] = {}
    for group, backlog in backlogs.items():
        label = (group.kind.value, labels[group.model], group.priority.value, group.capacity)
        folded[label] = folded.get(label, Backlog()) + backlog
    queued, leased = service.QUEUE_QUEUED.collected(), service.QUEUE_LEASED.collected()
    oldest, rows_left = service.QUEUE_OLDEST.collected(), service.QUEUE_ROWS_LEFT.collected()
    queued_by_kind: Counter[str] = Counter()
    for label, backlog in folded.items():
        queued_by_kind[label[0]] += backlog.queued
        queued.add_metric(label, backlog.queued)
        leased.add_metric(label, backlog.leased)
        rows_left.add_metric(label, backlog.rows_left)
        if backlog.oldest_at is not None:
            oldest.add_metric(label, max(0.0, (now - backlog.oldest_at).total_seconds()))
    shards = service.SHARDS_QUEUED.collected()
    for kind, count in queued_by_kind.items():
        shards.add_metric((kind,), count)
    return [shards, queued, leased, oldest, rows_left]


def _wanted(pools: Mapping[Pool, int], labels: Mapping[str, str]) -> Metric:
    folded: defaultdict[tuple[str, str], int] = defaultdict(int)
    for pool, count in pools.items():
        folded[labels[pool.model], pool.capacity] += count
    wanted = service.WORKERS_WANTED.collected()
    for label, count in folded.items():
        wanted.add_metric(label, count)
    return wanted


def _slack(by_class: Mapping[str, float]) -> Metric:
    slack = service.DEADLINE_SLACK.collected()
    for name, seconds in by_class.items():
        slack.add_metric((name,), seconds)
    return slack


def _workers(alive: Sequence[Worker]) -> Metric:
    workers = service.WORKERS.collected()
    for label, count in Counter((worker.state.value, worker.capacity.value) for worker in alive).items():
        workers.add_metric(label, count)
    return workers


class Surroundings(Collector):
    """Redis and the disk, as the API sees them. `ping` raises QueueUnavailable within its own timeout."""

    def __init__(self, ping: Callable[[], None], data_dir: Path) -> None:
        self._ping = ping
        self._data_dir = data_dir

    def describe(self) -> Iterator[Metric]:
        """Describes nothing, so that registering asks no one."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        up = service.REDIS_UP.collected()
        try:
            self._ping()
            up.add_metric((), 1)
        except QueueUnavailable:
            up.add_metric((), 0)
        yield up
        size, free = service.DISK_BYTES.collected(), service.DISK_FREE.collected()
        with suppress(OSError):  # without samples where there is no such directory
            usage = shutil.disk_usage(self._data_dir)
            size.add_metric((), usage.total)
            free.add_metric((), usage.free)
        yield from (size, free)
