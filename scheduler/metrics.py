"""Numbers for Prometheus: how the duties' passes went, and whether this process leads.

What is queued, running and owed is in the database, from which `api/metrics.py` reports it.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import ProcessCollector, start_http_server

from nightshift.errors import ConfigurationError
from nightshift.metrics import scheduler as declared
from nightshift.metrics.family import new_registry

log = logging.getLogger(__name__)

# From a pass that finds nothing to the validation of a large file.
BUCKETS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 300, 1800)


class DutyMetrics:
    """Observes passes. Thread-safe."""

    def __init__(self, is_leading: Callable[[], bool]) -> None:
        self.registry = new_registry()
        self._seconds = declared.DUTY_SECONDS.counted(self.registry, BUCKETS_S)
        self._failures = declared.DUTY_FAILURES.counted(self.registry)
        self._succeeded_at = declared.DUTY_SUCCEEDED_AT.counted(self.registry)
        declared.LEADING.counted(self.registry).set_function(lambda: float(is_leading()))
        ProcessCollector(registry=self.registry)

    def observe(self, duty: str, seconds: float, succeeded: bool) -> None:
        """A pass has ended."""
        self._seconds.labels(duty).observe(seconds)
        if succeeded:
            self._succeeded_at.labels(duty).set_to_current_time()
        else:
            self._failures.labels(duty).inc()

    @contextmanager
    def served(self, port: int) -> Iterator[int]:
        """Answer `GET /metrics` on this port (0: any free one) meanwhile. Yields the port. Raises
        ConfigurationError if it is taken.
        """
        server: WSGIServer
        thread: threading.Thread
        try:
            server, thread = start_http_server(port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on port {port}: {error.strerror}; "
                "set NIGHTSHIFT_SCHEDULER_METRICS_PORT to a free one, or to 0",
                param="SCHEDULER_METRICS_PORT",
            ) from error
        log.info("metrics served", extra={"action": "metrics_served", "port": server.server_port})
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
