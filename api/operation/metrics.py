"""The queue as the database has it, read at each scrape: counted events could be lost, rows are not."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.errors import DatabaseUnavailable, QueueUnavailable
from nightshift.fleet.figures import ALIVE_WITHIN, ServiceFigures
from nightshift.fleet.workers import ExitCause, Worker, WorkerState
from nightshift.jobs.capacity.backlog import Backlog, Group, WaitingJob, by_group
from nightshift.jobs.capacity.demand import Pool, demand, slack_s
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


def queue_metrics(
    waiting: Sequence[WaitingJob], workers: Sequence[Worker], recorded: ServiceFigures | None, now: datetime
) -> list[Metric]:
    """`workers`: those that are alive. `recorded`: the service's figures of last, for the paces of models."""
    groups = by_group(waiting)
    labels = model_labels(
        [group.model for group, found in sorted(groups.items(), key=lambda one: -one[1].queued)]
    )
    paces = recorded.rows_per_busy_s if recorded else {}
    ready = [each for each in workers if each.state is WorkerState.READY]
    having = Counter(model for each in ready for model in each.warm)
    return [
        *_of_groups(groups, labels, now),
        _wanted(demand(waiting, paces, now, set(having)), labels),
        _slack(slack_s(waiting, paces, now, having)),
        _workers(workers),
    ]


def _of_groups(groups: Mapping[Group, Backlog], labels: Mapping[str, str], now: datetime) -> list[Metric]:
    folded: dict[tuple[str, str, str, str], Backlog] = {}
    for group, found in groups.items():
        label = (group.kind.value, labels[group.model], group.priority.value, group.capacity)
        folded[label] = folded.get(label, Backlog()) + found
    queued, leased = service.QUEUE_QUEUED.collected(), service.QUEUE_LEASED.collected()
    oldest, rows_left = service.QUEUE_OLDEST.collected(), service.QUEUE_ROWS_LEFT.collected()
    of_kind: Counter[str] = Counter()
    for label, found in folded.items():
        of_kind[label[0]] += found.queued
        queued.add_metric(label, found.queued)
        leased.add_metric(label, found.leased)
        rows_left.add_metric(label, found.rows_left)
        if found.oldest_at is not None:
            oldest.add_metric(label, max(0.0, (now - found.oldest_at).total_seconds()))
    shards = service.SHARDS_QUEUED.collected()
    for kind, count in of_kind.items():
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
    for (state, capacity), count in Counter(
        (each.state.value, each.capacity.value) for each in alive
    ).items():
        workers.add_metric((state, capacity), count)
    return workers


class Surroundings(Collector):
    """`ping` raises QueueUnavailable, after a time of its own at most."""

    def __init__(self, ping: Callable[[], None], data_dir: Path) -> None:
        self._ping = ping
        self._data_dir = data_dir

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registering asks no one."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        up = service.REDIS_UP.collected()
        up.add_metric((), float(self._answers()))
        yield up
        yield from self._disk()

    def _answers(self) -> bool:
        try:
            self._ping()
        except QueueUnavailable:
            return False
        return True

    def _disk(self) -> Iterator[Metric]:
        """Without samples where there is no such directory."""
        size, free = service.DISK_BYTES.collected(), service.DISK_FREE.collected()
        try:
            found = shutil.disk_usage(self._data_dir)
        except OSError:
            pass
        else:
            size.add_metric((), found.total)
            free.add_metric((), found.free)
        yield from (size, free)
