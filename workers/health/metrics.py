"""One worker process for Prometheus: its leases, its engines' steps, its memory. Results are in the
database.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.fleet.costs import NO_PRICES, Prices, WorkerTime
from nightshift.fleet.figures import DeviceFigures
from nightshift.process.metrics import engine
from nightshift.process.metrics import worker as declared
from nightshift.process.metrics.family import CounterFamily, GaugeFamily, HistogramFamily, new_registry
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
        servers, now_s = list(self._servers()), time.monotonic()
        since_s = {server.model.id: server.stepping_since_s for server in servers}
        ages_s = {
            id: 0.0 if began_s is None else max(0.0, now_s - began_s) for id, began_s in since_s.items()
        }
        yield filled(declared.LEASES, self._held())
        yield filled(declared.DRAINING, {(): float(self._is_draining())})
        yield filled(declared.STEPS, {server.model.id: server.steps for server in servers})
        yield filled(declared.STEP_SECONDS, {server.model.id: server.step_seconds for server in servers})
        yield filled(declared.STEP_AGE, ages_s)
        yield filled(engine.BUSY, {server.model.id: server.busy_fraction for server in servers})
        yield filled(engine.ROOFLINE, {server.model.id: server.roofline_fraction for server in servers})
        yield from self._shard_metrics()
        yield from self._device_metrics()
        if self._residency is not None:
            yield from _residency_metrics(servers, self._residency)
        snapshots = [(server.model.id, server.engine_stats) for server in servers]  # as of their last steps
        for attribute, family in engine.OF_STATS.items():  # encoders have fewer figures
            yield filled(family, {id: getattr(stats, attribute, None) for id, stats in snapshots})
        eager = [(id, getattr(stats, "eager_steps", {})) for id, stats in snapshots]
        by_reason = {(id, reason): count for id, counts in eager for reason, count in counts.items()}
        yield filled(engine.EAGER_STEPS, by_reason)
        yield from request_metrics(servers, self._online)
        for collector in {server.collector for server in servers}:
            if collector is not None:
                yield from collector.collect()

    def _shard_metrics(self) -> Iterator[Metric]:
        storage, worker_time = self._shards.storage, self._shards.worker_time()
        transfers = {"read": storage.read, "written": storage.written}
        yield filled(declared.ROWS, self._shards.rows_finished())
        yield filled(engine.STARVED, self._shards.starved_seconds())
        yield filled(declared.STORAGE_BYTES, {name: transfer.bytes for name, transfer in transfers.items()})
        waits_s = {name: transfer.seconds for name, transfer in transfers.items()}
        yield filled(declared.STORAGE_SECONDS, waits_s)
        by_capacity = {"spot": worker_time.spot_s, "on_demand": worker_time.on_demand_s}
        yield filled(declared.SHARD_SECONDS, by_capacity)
        cost = self._shards.prices.cost(worker_time)
        if cost is not None:
            yield filled(declared.COST, {(): cost})

    def _device_metrics(self) -> Iterator[Metric]:
        """Leaves out what is not known."""
        device = self._device()
        if device is None:
            return
        for family, value in (
            (declared.DEVICE_MEMORY, device.memory_bytes),
            (declared.DEVICE_MEMORY_USED, device.memory_used_bytes),
            (declared.DEVICE_UTILISATION, device.utilisation),
        ):
            if value is not None:
                yield filled(family, {device.name or device.kind: value})


def filled(family: CounterFamily | GaugeFamily, values: Mapping[Any, float | None]) -> Metric:
    """A family's samples by label, or by its labels; without those that are not known."""
    metric = family.collected()
    for label, value in values.items():
        if value is not None:
            metric.add_metric(label if isinstance(label, tuple) else (label,), value)
    return metric


def _residency_metrics(servers: Iterable[ModelServer], counts: ResidencyCounts) -> Iterator[Metric]:
    yield filled(declared.MODEL_WARM, {server.model.id: 1.0 for server in servers})
    yield filled(declared.MODEL_LOADS, {(): counts.loads})
    yield filled(declared.MODEL_LOAD_SECONDS, {(): counts.load_seconds})
    yield filled(declared.MODEL_SWAPS, {(): counts.swaps})
    yield filled(declared.MODEL_REFUSALS, {(): counts.refusals})


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
    """Histograms of requests and steps as they are now; named after vLLM's."""
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
