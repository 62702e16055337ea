"""Numbers of one worker process for Prometheus: what it holds, what its engines do, what it weighs.

What became of the rows stands in the database, and `api/metrics.py` tells it from there.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.errors import ConfigurationError
from workers.serving.model_server import ModelServer


class WorkerMetrics(Collector):
    """Asked at every scrape; nothing is counted twice for it."""

    def __init__(
        self,
        servers: Callable[[], Iterable[ModelServer]],
        held: Callable[[], dict[str, int]],
        is_draining: Callable[[], bool],
    ) -> None:
        """`held`: how many leases of each kind this worker has."""
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
        for server in self._servers():
            label = (server.model.id,)
            since_s = server.stepping_since_s
            steps.add_metric(label, server.steps)
            seconds.add_metric(label, server.step_seconds)
            age.add_metric(label, 0.0 if since_s is None else max(0.0, time.monotonic() - since_s))
        return iter((held, draining, steps, seconds, age))

    def serve(self, port: int) -> None:
        """Answer `GET /metrics` on this port from now on. Raises ConfigurationError if it is taken."""
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
