"""The address at which a process shows its metrics."""

import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Gauge

from nightshift.errors import ConfigurationError
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.serving import MetricsServer


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = new_registry()
    Gauge("wings", "How many", registry=registry).set(2)
    server = MetricsServer(registry)
    yield server
    server.close()


def read(path: Path) -> str:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        return client.get("http://localhost/metrics").text


def test_metrics_are_shown_on_a_port_and_on_a_socket_that_only_its_user_can_read_until_the_end(
    server: MetricsServer, tmp_path: Path
) -> None:
    port, socket = server.open_port(0, "WORKER_METRICS_PORT"), tmp_path / "worker-1.sock"
    server.open_socket(socket)

    shown = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    assert "wings 2.0" in shown
    assert read(socket) == shown
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600

    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    assert not socket.exists()


def test_what_a_killed_process_has_left_is_replaced(server: MetricsServer, tmp_path: Path) -> None:
    (tmp_path / "worker-1.sock").touch()
    server.open_socket(tmp_path / "worker-1.sock")

    assert "wings 2.0" in read(tmp_path / "worker-1.sock")


def test_a_port_that_is_taken_and_a_socket_that_cannot_be_made_are_said(
    server: MetricsServer, tmp_path: Path
) -> None:
    port = server.open_port(0, "WORKER_METRICS_PORT")

    with pytest.raises(ConfigurationError, match=f"port {port}: .*set NIGHTSHIFT_SCHEDULER_METRICS"):
        MetricsServer(new_registry()).open_port(port, "SCHEDULER_METRICS_PORT")
    for path in (tmp_path / "nowhere" / "a.sock", tmp_path / ("long" * 40)):
        with pytest.raises(ConfigurationError, match="metrics cannot be served on"):
            server.open_socket(path)
