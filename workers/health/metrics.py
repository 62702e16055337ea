"""One worker process for Prometheus: its leases, its engines' steps, its memory. Results are in the
database.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.fleet.costs import NO_PRICES, Prices, WorkerTime
from nightshift.fleet.figures import DeviceFigures
from nightshift.process.metrics import engine
from nightshift.process.metrics import worker as declared
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.processes import register_process
from workers.health.request_metrics import request_metrics
from workers.online.times import OnlineTimes
from workers.serving.model_server import ModelServer
from workers.serving.residency.residency import ResidencyCounts
from workers.shard.figures import StorageCounts


@dataclass(frozen=True)
class ShardCounts:
    """Of the bulk shards of a worker, since its start; the first two by model."""

    rows_finished: Callable[[], Mapping[str, float]] = dict
    starved_seconds: Callable[[], Mapping[str, float]] = dict
    storage: StorageCounts = field(default_factory=StorageCounts)
    worker_time: Callable[[], WorkerTime] = WorkerTime
    prices: Prices = NO_PRICES


class WorkerMetrics(Collector):
    """Collected at every scrape."""

    def __init__(
        self,
        servers: Callable[[], Iterable[ModelServer]],
        held: Callable[[], dict[str, int]],
        is_draining: Callable[[], bool],
        online: OnlineTimes | None = None,
        residency: ResidencyCounts | None = None,
        shards: ShardCounts = ShardCounts(),
        device: Callable[[], DeviceFigures | None] = lambda: None,
    ) -> None:
        """`held`: how many leases of each kind this worker has. `residency`: of its lazy models; None: it has
        none.
        """
        self._residency = residency
        self._shards = shards
        self._device = device
        self._online = online or OnlineTimes()
        self._servers = servers
        self._held = held
        self._is_draining = is_draining
        self.registry = new_registry()
        self.registry.register(self)
        register_process(self.registry)

    def collect(self) -> Iterator[Metric]:
        held, draining = declared.LEASES.collected(), declared.DRAINING.collected()
        for kind, count in self._held().items():
            held.add_metric((kind,), count)
        draining.add_metric((), float(self._is_draining()))
        steps, seconds = declared.STEPS.collected(), declared.STEP_SECONDS.collected()
        age, busy = declared.STEP_AGE.collected(), engine.BUSY.collected()
        roofline = engine.ROOFLINE.collected()
        for server in self._servers():
            label = (server.model.id,)
            busy.add_metric(label, server.busy_fraction)
            fraction = server.roofline_fraction
            if fraction is not None:
                roofline.add_metric(label, fraction)
            since_s = server.stepping_since_s
            steps.add_metric(label, server.steps)
            seconds.add_metric(label, server.step_seconds)
            age.add_metric(label, 0.0 if since_s is None else max(0.0, time.monotonic() - since_s))
        yield from (held, draining, steps, seconds, age, busy, roofline)
        yield from self._shard_metrics()
        yield from self._device_metrics()
        yield from self._residency_metrics()
        yield from self._engine_metrics()
        yield from request_metrics(self._servers(), self._online)

    def _shard_metrics(self) -> Iterator[Metric]:
        for family, of_models in (
            (declared.ROWS, self._shards.rows_finished()),
            (engine.STARVED, self._shards.starved_seconds()),
        ):
            counter = family.collected()
            for model, count in of_models.items():
                counter.add_metric((model,), count)
            yield counter
        storage = self._shards.storage
        size, seconds = declared.STORAGE_BYTES.collected(), declared.STORAGE_SECONDS.collected()
        for direction, amount in (("read", storage.read), ("written", storage.written)):
            size.add_metric((direction,), amount.bytes)
            seconds.add_metric((direction,), amount.seconds)
        yield from (size, seconds)
        time = self._shards.worker_time()
        taken = declared.SHARD_SECONDS.collected()
        taken.add_metric(("spot",), time.spot_s)
        taken.add_metric(("on_demand",), time.on_demand_s)
        yield taken
        spent = self._shards.prices.cost(time)
        if spent is not None:
            cost = declared.COST.collected()
            cost.add_metric((), spent)
            yield cost

    def _device_metrics(self) -> Iterator[Metric]:
        """Without what is not known."""
        found = self._device()
        if found is None:
            return
        for family, value in (
            (declared.DEVICE_MEMORY, found.memory_bytes),
            (declared.DEVICE_MEMORY_USED, found.memory_used_bytes),
            (declared.DEVICE_UTILISATION, found.utilisation),
        ):
            if value is not None:
                gauge = family.collected()
                gauge.add_metric((found.name or found.kind,), value)
                yield gauge

    def _residency_metrics(self) -> Iterator[Metric]:
        if self._residency is None:
            return
        warm = declared.MODEL_WARM.collected()
        for server in self._servers():
            warm.add_metric((server.model.id,), 1.0)
        yield warm
        for family, value in (
            (declared.MODEL_LOADS, self._residency.loads),
            (declared.MODEL_LOAD_SECONDS, self._residency.load_seconds),
            (declared.MODEL_SWAPS, self._residency.swaps),
            (declared.MODEL_REFUSALS, self._residency.refusals),
        ):
            counter = family.collected()
            counter.add_metric((), value)
            yield counter

    def _engine_metrics(self) -> Iterator[Metric]:
        """The engines' figures as of the end of their last steps."""
        snapshots = [(server.model.id, server.engine_stats) for server in self._servers()]
        for attribute, family in engine.OF_STATS.items():
            metric = family.collected()
            for model_id, stats in snapshots:
                value = getattr(stats, attribute, None)
                if value is not None:  # encoders have fewer figures
                    metric.add_metric((model_id,), value)
            yield metric
