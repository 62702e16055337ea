"""One worker process for Prometheus: its leases, its engines' steps, its memory. Results are in the
database.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.fleet.costs import NO_PRICES, Prices, WorkerTime
from nightshift.fleet.figures import DeviceFigures
from nightshift.process.metrics import engine
from nightshift.process.metrics import worker as declared
from nightshift.process.metrics.family import HistogramFamily, new_registry
from nightshift.process.metrics.processes import register_process
from nightshift_engine import ClassHistograms, Histogram
from workers.online.times import OnlineTimes, RequestTimes
from workers.serving.model_server import ModelServer
from workers.serving.residency.residency import ResidencyCounts
from workers.shard.figures import StorageCounts


@dataclass(frozen=True)
class ShardCounts:
    """Counts of a worker's bulk shards since its start; the first two by model."""

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
        device = self._device()
        if device is None:
            return
        for family, value in (
            (declared.DEVICE_MEMORY, device.memory_bytes),
            (declared.DEVICE_MEMORY_USED, device.memory_used_bytes),
            (declared.DEVICE_UTILISATION, device.utilisation),
        ):
            if value is not None:
                gauge = family.collected()
                gauge.add_metric((device.name or device.kind,), value)
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


OF_ENGINE: Final[dict[HistogramFamily, Callable[[ClassHistograms], Histogram]]] = {
    declared.QUEUE_SECONDS: lambda times: times.queue_s,
    declared.PREFILL: lambda times: times.prefill_s,
    declared.INTER_TOKEN: lambda times: times.inter_token_s,
    declared.DECODE: lambda times: times.decode_s,
}
ONLINE: Final[dict[HistogramFamily, Callable[[RequestTimes], Histogram]]] = {
    declared.FIRST_TOKEN: lambda times: times.first_token_s,
    declared.REQUEST: lambda times: times.request_s,
}


def request_metrics(servers: Iterable[ModelServer], online: OnlineTimes) -> Iterator[Metric]:
    """As of now."""
    engines = [(server.model.id, server.histograms) for server in servers]
    batches, tokens = engine.BATCH_SIZE.collected(), engine.TOKENS_PER_STEP.collected()
    prompts, generated = declared.PROMPT_TOKENS.collected(), declared.GENERATION_TOKENS.collected()
    for model, histograms in engines:
        if histograms is None:
            continue
        _add(batches, (model,), histograms.batch_size)
        _add(tokens, (model,), histograms.tokens_per_step)
        for name, of_class in list(histograms.by_class.items()):
            prompts.add_metric((model, name), of_class.prompt_tokens)
            generated.add_metric((model, name), of_class.generation_tokens)
    yield from (batches, tokens, prompts, generated)
    for declaration, of_class_histogram in OF_ENGINE.items():
        family = declaration.collected()
        for model, histograms in engines:
            for name, of_class in list(histograms.by_class.items()) if histograms is not None else ():
                _add(family, (model, name), of_class_histogram(of_class))
        yield family
    for declaration, of_times in ONLINE.items():
        family = declaration.collected()
        for label, times in online:
            _add(family, label, of_times(times))
        yield family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    family.add_metric(labels, histogram.cumulative(), histogram.sum)
