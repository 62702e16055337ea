"""One worker process for Prometheus: its leases, its engines' steps, its memory. Results are in the
database.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.errors import ConfigurationError
from workers.health.request_metrics import request_metrics
from workers.online.times import OnlineTimes
from workers.serving.model_server import ModelServer
from workers.serving.residency.residency import ResidencyCounts


@dataclass(frozen=True)
class EngineFigure:
    """An attribute of `EngineStats`, or of `EncoderStats` where that has it, as a metric."""

    attribute: str
    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    help: str


ENGINE_FIGURES = (
    EngineFigure(
        "running", GaugeMetricFamily, "nightshift_engine_sequences_running", "Sequences with a slot"
    ),
    EngineFigure(
        "waiting",
        GaugeMetricFamily,
        "nightshift_engine_sequences_waiting",
        "Sequences or inputs without a slot",
    ),
    EngineFigure("blocks_used", GaugeMetricFamily, "nightshift_engine_kv_blocks_used", "KV blocks held"),
    EngineFigure("blocks_total", GaugeMetricFamily, "nightshift_engine_kv_blocks", "KV blocks in all"),
    EngineFigure(
        "max_num_batched_tokens",
        GaugeMetricFamily,
        "nightshift_engine_step_tokens_max",
        "Tokens a step may have now; fewer for a while after one ran out of memory",
    ),
    EngineFigure("steps", CounterMetricFamily, "nightshift_engine_steps", "Steps computed"),
    EngineFigure(
        "tokens_computed",
        CounterMetricFamily,
        "nightshift_engine_tokens_computed",
        "Tokens that went through the model, prompts and recomputation included",
    ),
    EngineFigure(
        "tokens_padded",
        CounterMetricFamily,
        "nightshift_engine_tokens_padded",
        "Padding of an encoder's passes, in tokens",
    ),
    EngineFigure(
        "timeouts",
        CounterMetricFamily,
        "nightshift_engine_timeouts",
        "Requests that an encoder's queue policy rejected",
    ),
    EngineFigure(
        "tokens_generated", CounterMetricFamily, "nightshift_engine_tokens_generated", "Tokens sampled"
    ),
    EngineFigure(
        "tokens_reused",
        CounterMetricFamily,
        "nightshift_engine_tokens_reused",
        "Prefix hits: tokens whose KV was found instead of computed",
    ),
    EngineFigure(
        "tokens_recomputed",
        CounterMetricFamily,
        "nightshift_engine_tokens_recomputed",
        "Tokens computed again after a preemption",
    ),
    EngineFigure(
        "preemptions",
        CounterMetricFamily,
        "nightshift_engine_preemptions",
        "Sequences that lost their slot or blocks to others",
    ),
    EngineFigure(
        "deferrals",
        CounterMetricFamily,
        "nightshift_engine_prefix_deferrals",
        "Sequences that waited for a prefix another was computing",
    ),
    EngineFigure(
        "out_of_memory",
        CounterMetricFamily,
        "nightshift_engine_steps_out_of_memory",
        "Steps that ran out of memory and were planned anew, smaller",
    ),
)


class WorkerMetrics(Collector):
    """Collected at every scrape."""

    def __init__(
        self,
        servers: Callable[[], Iterable[ModelServer]],
        held: Callable[[], dict[str, int]],
        is_draining: Callable[[], bool],
        online: OnlineTimes | None = None,
        residency: ResidencyCounts | None = None,
    ) -> None:
        """`held`: how many leases of each kind this worker has. `residency`: of its lazy models; None: it has
        none.
        """
        self._residency = residency
        self._online = online or OnlineTimes()
        self._servers = servers
        self._held = held
        self._is_draining = is_draining
        self._http: WSGIServer | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("nightshift_worker_leases", "Leases held", labels=("kind",))
        for kind, count in self._held().items():
            held.add_metric((kind,), count)
        draining = GaugeMetricFamily("nightshift_worker_draining", "1 while it hands its work back")
        draining.add_metric((), float(self._is_draining()))
        steps = CounterMetricFamily("nightshift_worker_steps", "Engine steps ended", labels=("model",))
        seconds = CounterMetricFamily(
            "nightshift_worker_step_seconds", "Time in engine steps that have ended", labels=("model",)
        )
        age = GaugeMetricFamily(
            "nightshift_worker_step_age_seconds", "Age of the step under way; 0: none is", labels=("model",)
        )
        busy = GaugeMetricFamily(
            "nightshift_engine_busy_fraction",
            "Share of the last 10 seconds in which an engine was in a step",
            labels=("model",),
        )
        for server in self._servers():
            label = (server.model.id,)
            busy.add_metric(label, server.busy_fraction)
            since_s = server.stepping_since_s
            steps.add_metric(label, server.steps)
            seconds.add_metric(label, server.step_seconds)
            age.add_metric(label, 0.0 if since_s is None else max(0.0, time.monotonic() - since_s))
        yield from (held, draining, steps, seconds, age, busy)
        yield from self._residency_metrics()
        yield from self._engine_metrics()
        yield from request_metrics(self._servers(), self._online)

    def _residency_metrics(self) -> Iterator[Metric]:
        if self._residency is None:
            return
        warm = GaugeMetricFamily("nightshift_worker_model_warm", "1 for each loaded model", labels=("model",))
        for server in self._servers():
            warm.add_metric((server.model.id,), 1.0)
        yield warm
        for name, help, value in (
            ("nightshift_worker_model_loads", "Lazy models loaded", self._residency.loads),
            (
                "nightshift_worker_model_load_seconds",
                "Time from the decision to load a model, with any to unload first, until it could run",
                self._residency.load_seconds,
            ),
            ("nightshift_worker_model_swaps", "Loads in place of other models", self._residency.swaps),
            ("nightshift_worker_model_refusals", "Loads that failed", self._residency.refusals),
        ):
            counter = CounterMetricFamily(name, help)
            counter.add_metric((), value)
            yield counter

    def _engine_metrics(self) -> Iterator[Metric]:
        """The engines' figures as of the end of their last steps."""
        snapshots = [(server.model.id, server.engine_stats) for server in self._servers()]
        for figure in ENGINE_FIGURES:
            metric = figure.family(figure.name, figure.help, labels=("model",))
            for model_id, stats in snapshots:
                value = getattr(stats, figure.attribute, None)
                if value is not None:  # encoders have fewer figures
                    metric.add_metric((model_id,), value)
            yield metric

    def serve(self, port: int) -> None:
        """Answer `GET /metrics` on this port. Raises ConfigurationError if it is taken."""
        try:
            self._http, _ = start_http_server(port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on port {port}: {error.strerror}; "
                "set NIGHTSHIFT_WORKER_METRICS_PORT to a free one, or to 0",
                param="WORKER_METRICS_PORT",
            ) from error

    @property
    def port(self) -> int | None:
        return None if self._http is None else self._http.server_port

    def close(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
