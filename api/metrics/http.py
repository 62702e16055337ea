"""Counts and latencies of the API's own requests."""

from typing import Final

from nightshift.process.metrics import service
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.processes import register_process

# From a cached look-up to the longest chat answer.
LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

# A client may invent methods, and each would be a label's value for as long as the process lives.
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"


class HttpMetrics:
    """By method, route and status. The API is one process per container, so one registry suffices."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self._requests = service.HTTP_REQUESTS.counted(self.registry)
        self._seconds = service.HTTP_SECONDS.counted(self.registry, LATENCY_BUCKETS_S)
        register_process(self.registry)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else OTHER
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
