"""Declarations of metrics, from which an exporter makes its samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Process(StrEnum):
    """The process that counts a metric. `nightshift up` shows all of them at the API's address."""

    API = "API"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    EVERY = "every process"


@dataclass(frozen=True, kw_only=True)
class Family:
    """`labels` have few values, whatever clients send: never a tenant or a job."""

    type: ClassVar[str]  # as Prometheus names it

    name: str  # as its samples have it, but for what histograms add
    help: str
    process: Process
    labels: tuple[str, ...] = ()
    closer: str = ""
    """Look closer when …; "": it is read beside others."""

    @property
    def base(self) -> str:
        """The name for prometheus_client, which adds `_total` to counters by itself."""
        return self.name.removesuffix("_total")

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        return (self.name,)


@dataclass(frozen=True, kw_only=True)
class CounterFamily(Family):
    """A counter that rises until its process ends; those that the database keeps, for ever."""

    def __post_init__(self) -> None:
        assert self.name.endswith("_total"), f"{self.name} is a counter"

    type = "counter"

    def collected(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.base, self.help, labels=self.labels)

    def counted(self, registry: CollectorRegistry) -> Counter:
        return Counter(self.base, self.help, self.labels, registry=registry)


@dataclass(frozen=True, kw_only=True)
class GaugeFamily(Family):
    type = "gauge"

    def collected(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.base, self.help, labels=self.labels)

    def counted(self, registry: CollectorRegistry) -> Gauge:
        return Gauge(self.base, self.help, self.labels, registry=registry)


@dataclass(frozen=True, kw_only=True)
class HistogramFamily(Family):
    type = "histogram"

    @property
    def samples(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))

    def collected(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.base, self.help, labels=self.labels)

    def counted(self, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
        return Histogram(self.base, self.help, self.labels, buckets=buckets, registry=registry)


def new_registry() -> CollectorRegistry:
    """A registry without the `_created` series, which no one asked for."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry()


MODELS_MAX: Final = 50  # on one page, those with most to show
OTHERS: Final = "(others)"  # no model's id has a parenthesis first


def model_labels(by_importance: Iterable[str], limit: int = MODELS_MAX) -> dict[str, str]:
    """The label of each model: its id, or of those beyond the limit one for all."""
    return {id: id if place < limit else OTHERS for place, id in enumerate(dict.fromkeys(by_importance))}
