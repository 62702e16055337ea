"""Figures of workers and of the whole service, as answers show them: null where a figure is not known."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import DeviceFigures, ModelFigures, ServiceFigures, WorkerFigures
from nightshift.jobs import JobKind
from nightshift.jobs.capacity.backlog import Backlog, Group
from nightshift.jobs.capacity.demand import PoolSupply
from nightshift.jobs.priorities import PriorityClass
from nightshift.store.jobs.overview import QueueGroup

P50, P95 = 0.5, 0.95


class ModelFiguresObject(BaseModel):
    """One loaded model of a worker. Rates are means of the last 15 s, times to first token of the last minute
    and from the client's submit, by class.
    """

    running: int | None
    waiting: int | None
    kv_blocks_used: int | None
    kv_blocks: int | None
    busy_fraction: float | None
    starved_fraction: float | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    rows_per_s: float | None
    first_token_p50_s: dict[str, float]
    first_token_p95_s: dict[str, float]


class DeviceFiguresObject(BaseModel):
    kind: str
    name: str | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    utilisation: float | None


class WorkerFiguresObject(BaseModel):
    """As of the worker's last heartbeat. `shards`, `requests`: leases held, of bulk and online work."""

    shards: int | None
    requests: int | None
    memory_bytes: int | None
    device: DeviceFiguresObject | None
    models: dict[str, ModelFiguresObject]

    @classmethod
    def of(cls, figures: WorkerFigures) -> "WorkerFiguresObject":
        device = figures.device
        return cls(
            shards=figures.shards,
            requests=figures.requests,
            memory_bytes=figures.memory_bytes,
            device=None if device is None else _of_device(device),
            models={id: _of_model(model) for id, model in figures.models.items()},
        )


class ServiceFiguresObject(BaseModel):
    """Of all workers that are alive together."""

    workers_ready: int
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    rows_per_s: float | None
    busy_fraction: float | None
    first_token_p50_s: dict[str, float]
    first_token_p95_s: dict[str, float]

    @classmethod
    def of(cls, figures: ServiceFigures) -> "ServiceFiguresObject":
        return cls(
            workers_ready=figures.workers,
            prompt_tokens_per_s=figures.prompt_tokens_per_s,
            generation_tokens_per_s=figures.generation_tokens_per_s,
            rows_per_s=figures.rows_per_s,
            busy_fraction=figures.busy_fraction,
            first_token_p50_s=dict(figures.first_token_p50_s),
            first_token_p95_s=dict(figures.first_token_p95_s),
        )


class PastFiguresObject(ServiceFiguresObject):
    at: int

    @classmethod
    def at_its_time(cls, figures: ServiceFigures) -> "PastFiguresObject":
        return cls(at=int(figures.at.timestamp()), **vars(ServiceFiguresObject.of(figures)))


class QueueGroupObject(BaseModel):
    """A tenant's unfinished jobs of one kind, class and model. `model`: null until the input is read."""

    kind: JobKind
    priority: PriorityClass
    model: str | None
    queued: int
    running: int
    paused: int
    rows_left: int

    @classmethod
    def of(cls, group: QueueGroup) -> "QueueGroupObject":
        return cls(**vars(group))


class ServiceQueueGroupObject(BaseModel):
    """Shards and online requests of all tenants that only the same workers may run."""

    kind: JobKind
    priority: PriorityClass
    model: str
    capacity: str
    queued: int
    leased: int
    rows_left: int
    oldest_at: int | None

    @classmethod
    def of(cls, group: Group, found: Backlog) -> "ServiceQueueGroupObject":
        return cls(
            kind=group.kind,
            priority=group.priority,
            model=group.model,
            capacity=group.capacity,
            queued=found.queued,
            leased=found.leased,
            rows_left=found.rows_left,
            oldest_at=None if found.oldest_at is None else int(found.oldest_at.timestamp()),
        )


class WorkersWantedObject(BaseModel):
    """The fewest workers that would end what waits before its deadlines, and those that could run it."""

    model: str
    capacity: str
    pool: str | None  # that the jobs name; null: they run in any
    wanted: int
    ready: int
    starting: int

    @classmethod
    def from_supply(cls, supplied: PoolSupply) -> "WorkersWantedObject":
        return cls(
            model=supplied.pool.model,
            capacity=supplied.pool.capacity,
            pool=supplied.pool.name or None,
            wanted=supplied.wanted,
            ready=supplied.ready,
            starting=supplied.starting,
        )


class OverviewObject(BaseModel):
    """`queue` is the caller's tenant's. `service_queue` and `workers_wanted` are of all tenants, and null but
    for administrators.
    """

    object: Literal["overview"] = "overview"
    at: int
    workers: dict[str, int]
    service: ServiceFiguresObject
    history: list[PastFiguresObject]
    queue: list[QueueGroupObject]
    queue_is_whole: bool
    service_queue: list[ServiceQueueGroupObject] | None
    workers_wanted: list[WorkersWantedObject] | None


def service_queue(groups: Mapping[Group, Backlog]) -> list[ServiceQueueGroupObject]:
    return [ServiceQueueGroupObject.of(group, found) for group, found in sorted(groups.items(), key=_urgency)]


def _urgency(of: tuple[Group, Backlog]) -> tuple[int, str, str, str]:
    group, _ = of
    return group.priority.rank, group.model, group.kind, group.capacity


def _of_device(figures: DeviceFigures) -> DeviceFiguresObject:
    return DeviceFiguresObject(
        kind=figures.kind,
        name=figures.name,
        memory_used_bytes=figures.memory_used_bytes,
        memory_bytes=figures.memory_bytes,
        utilisation=figures.utilisation,
    )


def _of_model(figures: ModelFigures) -> ModelFiguresObject:
    return ModelFiguresObject(
        running=figures.running,
        waiting=figures.waiting,
        kv_blocks_used=figures.kv_blocks_used,
        kv_blocks=figures.kv_blocks,
        busy_fraction=figures.busy_fraction,
        starved_fraction=figures.starved_fraction,
        prompt_tokens_per_s=figures.prompt_tokens_per_s,
        generation_tokens_per_s=figures.generation_tokens_per_s,
        rows_per_s=figures.rows_per_s,
        first_token_p50_s=_quantiles(figures.first_token_s.items(), P50),
        first_token_p95_s=_quantiles(figures.first_token_s.items(), P95),
    )


def _quantiles(durations: Iterable[tuple[str, Durations]], share: float) -> dict[str, float]:
    found = {name: each.quantile(share) for name, each in durations}
    return {name: round(seconds, 4) for name, seconds in found.items() if seconds is not None}
