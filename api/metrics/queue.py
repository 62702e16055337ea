"""What waits for workers, and how many it needs, as metrics."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from prometheus_client.core import Metric

from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs.capacity.backlog import Backlog, Group, WaitingJob, by_group
from nightshift.jobs.capacity.demand import Pool, demand, slack_s
from nightshift.process.metrics import service
from nightshift.process.metrics.labels import model_labels


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
