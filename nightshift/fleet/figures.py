"""Figures that a worker reports with its heartbeats, and the whole service's figures over time. Pure.

In JSON a figure that is not known is absent, never 0: a worker of another release, or without a GPU, says
less. What is no figure, such as NaN, a text or a negative number, is not known either, told or read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from nightshift.fleet.durations import Durations, is_figure

RATES_WINDOW_S: Final = 15.0  # rates are means over the last seconds, this many
DURATIONS_WINDOW_S: Final = 60.0  # durations are of what ended within this many
MODELS_MAX: Final = 32  # models in a worker's report, the busiest first
INTERVAL_S: Final = 15.0  # between two figures of the whole service: no second is missing
KEPT: Final = timedelta(days=2)  # 11,520 of them
ALIVE_WITHIN: Final = timedelta(seconds=30)  # six heartbeats; an older report says nothing of now


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """One loaded model of one worker."""

    running: int | None = None  # sequences with a slot
    waiting: int | None = None  # sequences or inputs without one
    kv_blocks_used: int | None = None
    kv_blocks: int | None = None
    busy_fraction: float | None = None  # busy share of the last seconds, from 0 to 1
    starved_fraction: float | None = None  # likewise: no step, although a shard of its jobs was held
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    rows_per_s: float | None = None  # bulk rows and online requests that ended
    first_token_s: Mapping[str, Durations] = field(default_factory=dict)  # online requests, by class
    request_s: Mapping[str, Durations] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        named = {name: _by_class_to_json(getattr(self, name)) for name in _DURATIONS}
        return _known(self, _MODEL_NUMBERS) | {name: value for name, value in named.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        durations: dict[str, Any] = {name: _by_class(data.get(name)) for name in _DURATIONS}
        return cls(**_numbers(data, _MODEL_NUMBERS), **durations)


@dataclass(frozen=True, kw_only=True)
class DeviceFigures:
    """The device on which a worker's models run."""

    kind: str  # as torch names it: cpu, cuda
    name: str | None = None
    memory_used_bytes: int | None = None  # used by all processes
    memory_bytes: int | None = None
    utilisation: float | None = None  # share of the last second in which a kernel ran, from 0 to 1

    def to_json(self) -> dict[str, Any]:
        return (
            {"kind": self.kind} | ({"name": self.name} if self.name else {}) | _known(self, _DEVICE_NUMBERS)
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        name = data.get("name")
        return cls(
            kind=str(data.get("kind", "")),
            name=str(name) if name else None,
            **_numbers(data, _DEVICE_NUMBERS),
        )


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
    """Figures of a worker at a heartbeat."""

    models: Mapping[str, ModelFigures] = field(default_factory=dict)
    device: DeviceFigures | None = None
    memory_bytes: int | None = None  # resident, of the process
    shards: int | None = None  # bulk shards held
    requests: int | None = None  # online requests held

    def to_json(self) -> dict[str, Any]:
        models = {id: figures.to_json() for id, figures in self.models.items()}
        device = {"device": self.device.to_json()} if self.device else {}
        return _known(self, _WORKER_NUMBERS) | device | {"models": models}

    @classmethod
    def from_json(cls, data: Any) -> Self | None:
        """The figures in a report. None: it is no report."""
        if not isinstance(data, Mapping):
            return None
        models, device = data.get("models"), data.get("device")
        return cls(
            models={
                str(id): ModelFigures.from_json(figures)
                for id, figures in (models.items() if isinstance(models, Mapping) else ())
                if isinstance(figures, Mapping)
            },
            device=DeviceFigures.from_json(device) if isinstance(device, Mapping) else None,
            **_numbers(data, _WORKER_NUMBERS),
        )

    def limited(self) -> Self:
        """The figures with those of the busiest models alone, where there are many."""
        if len(self.models) <= MODELS_MAX:
            return self
        busiest = sorted(self.models.items(), key=lambda item: (-(item[1].busy_fraction or 0.0), item[0]))
        return replace(self, models=dict(busiest[:MODELS_MAX]))


@dataclass(frozen=True, kw_only=True)
class ServiceFigures:
    """The whole service at a time: sums over the workers that are alive, and what waits in the database."""

    at: datetime
    workers: int = 0  # ready
    queued: Mapping[str, int] = field(default_factory=dict)  # shards and online requests, by class
    running: Mapping[str, int] = field(default_factory=dict)  # likewise, leased
    rows_left: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    rows_per_s: float | None = None
    busy_fraction: float | None = None  # mean over the loaded models
    first_token_p50_s: Mapping[str, float] = field(default_factory=dict)  # by class
    first_token_p95_s: Mapping[str, float] = field(default_factory=dict)
    rows_per_busy_s: Mapping[str, float] = field(default_factory=dict)
    """Rows that one worker runs in a second, by model, as measured last while it was busy."""

    def to_json(self) -> dict[str, Any]:
        """The figures without their time."""
        mappings = {name: dict(getattr(self, name)) for name in _BY_NAME if getattr(self, name)}
        return _known(self, _SERVICE_NUMBERS) | mappings

    @classmethod
    def from_json(cls, at: datetime, data: Mapping[str, Any]) -> Self:
        stored = {name: data[name] for name in _BY_NAME if isinstance(data.get(name), Mapping)}
        mappings: dict[str, Any] = {name: _numbers(values, values) for name, values in stored.items()}
        return cls(at=at, **_numbers(data, _SERVICE_NUMBERS), **mappings)


def merged_durations(reports: Iterable[WorkerFigures], name: str) -> dict[str, Durations]:
    """`first_token_s` or `request_s` of all their models together, by class."""
    merged: dict[str, Durations] = {}
    for report in reports:
        for model in report.models.values():
            for priority, durations in getattr(model, name).items():
                merged[priority] = merged.get(priority, Durations()) + durations
    return merged


def total(reports: Iterable[WorkerFigures], name: str) -> float | None:
    """The sum of a model's figure over all workers and models that have it. None: none has."""
    known = [
        value
        for report in reports
        for model in report.models.values()
        if (value := getattr(model, name)) is not None
    ]
    return sum(known) if known else None


def _names(kind: type[Any], *without: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in without)


_DURATIONS: Final = ("first_token_s", "request_s")
_BY_NAME: Final = (
    "queued",
    "running",
    "rows_left",
    "first_token_p50_s",
    "first_token_p95_s",
    "rows_per_busy_s",
)
_MODEL_NUMBERS: Final = _names(ModelFigures, *_DURATIONS)
_DEVICE_NUMBERS: Final = _names(DeviceFigures, "kind", "name")
_WORKER_NUMBERS: Final = _names(WorkerFigures, "models", "device")
_SERVICE_NUMBERS: Final = _names(ServiceFigures, "at", *_BY_NAME)
_DIGITS: Final = 4  # decimals of a rate


def _known(figures: Any, names: Iterable[str]) -> dict[str, Any]:
    values = ((name, getattr(figures, name)) for name in names)
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in values
        if is_figure(value)
    }


def _numbers(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    numbers = {name: data.get(name) for name in names}
    return {name: value for name, value in numbers.items() if is_figure(value)}


def _by_class_to_json(durations: Mapping[str, Durations]) -> dict[str, Any]:
    return {name: duration.to_json() for name, duration in durations.items() if duration.count}


def _by_class(data: Any) -> dict[str, Durations]:
    if not isinstance(data, Mapping):
        return {}
    return {str(name): Durations.from_json(duration) for name, duration in data.items()}
