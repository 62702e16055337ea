"""Figures of workers and of the whole service, as answers show them: null where a figure is not known."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from api.bodies import EpochTime, Record
from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import ModelFigures
from nightshift.jobs import JobKind
from nightshift.jobs.capacity.backlog import Backlog, Group
from nightshift.jobs.capacity.demand import PoolSupply
from nightshift.jobs.priorities import PriorityClass

P50, P95 = 0.5, 0.95


class ModelFiguresObject(Record):
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

    @model_validator(mode="before")
    @classmethod
    def _with_quantiles(cls, figures: ModelFigures) -> dict[str, Any]:
        durations = figures.first_token_s
        quantiles = {"first_token_p50_s": _quantiles(durations, P50)}
        return vars(figures) | quantiles | {"first_token_p95_s": _quantiles(durations, P95)}


class DeviceFiguresObject(Record):
    kind: str
    name: str | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    utilisation: float | None


class WorkerFiguresObject(Record):
    """Figures of a worker at its last heartbeat. `shards`, `requests`: leases held, of bulk and online
    work.
    """

    shards: int | None
    requests: int | None
    memory_bytes: int | None
    device: DeviceFiguresObject | None
    models: dict[str, ModelFiguresObject]


class ServiceFiguresObject(Record):
    """Sums over all workers that are alive."""

    workers_ready: int = Field(validation_alias="workers")
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    rows_per_s: float | None
    busy_fraction: float | None
    first_token_p50_s: dict[str, float]
    first_token_p95_s: dict[str, float]


class PastFiguresObject(ServiceFiguresObject):
    at: EpochTime


class QueueGroupObject(Record):
    """A tenant's unfinished jobs of one kind, class and model. `model`: null until the input is read."""

    kind: JobKind
    priority: PriorityClass
    model: str | None
    queued: int
    running: int
    paused: int
    rows_left: int


class ServiceQueueGroupObject(BaseModel):
    """Shards and online requests of all tenants that only the same workers may run."""

    kind: JobKind
    priority: PriorityClass
    model: str
    capacity: str
    queued: int
    leased: int
    rows_left: int
    oldest_at: EpochTime | None


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
        pool = supplied.pool
        return cls(
            model=pool.model,
            capacity=pool.capacity,
            pool=pool.name or None,
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
    """The groups, most urgent first."""
    urgent = sorted(groups, key=lambda group: (group.priority.rank, group.model, group.kind, group.capacity))
    return [ServiceQueueGroupObject(**vars(group), **vars(groups[group])) for group in urgent]


def _quantiles(durations: Mapping[str, Durations], share: float) -> dict[str, float]:
    quantiles = {name: samples.quantile(share) for name, samples in durations.items()}
    return {name: round(seconds, 4) for name, seconds in quantiles.items() if seconds is not None}
