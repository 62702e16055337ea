"""One page for all processes of a machine, whatever becomes of some of them."""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Gauge

from api.operation.processes import Processes, ScrapeConfig
from nightshift.process.metrics.family import new_registry
from nightshift.process.metrics.serving import MetricsServer

IMPATIENT = ScrapeConfig(answer_s=0.2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def running(stack: ExitStack, tmp_path: Path) -> Callable[[str], Path]:
    """A process that shows a metric."""

    def run(name: str) -> Path:
        registry = new_registry()
        Gauge("wings", "How many", registry=registry).set(2)
        server = MetricsServer(registry)
        server.open_socket(tmp_path / f"{name}.sock")
        stack.callback(server.close)
        return tmp_path / f"{name}.sock"

    return run


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    """As in the service: what is missing is logged."""
    caplog.set_level(logging.INFO)


def page(stack: ExitStack, *sockets: Path, config: ScrapeConfig = ScrapeConfig()) -> list[str]:
    own = new_registry()
    Gauge("feathers", "How many", registry=own).set(3)
    processes = Processes(sockets, config)
    stack.callback(processes.close)
    return processes.page(own).decode().splitlines()


def test_every_process_is_on_the_page(stack: ExitStack, running: Callable[[str], Path]) -> None:
    lines = page(stack, running("scheduler"), running("worker-1"), running("worker-2"))

    shown = {"feathers 3.0", "wings 2.0", 'wings{worker="worker-1"} 2.0', 'wings{worker="worker-2"} 2.0'}
    assert shown <= set(lines)
    for name in ("api", "scheduler", "worker-1", "worker-2"):
        assert f'nightshift_process_up{{process="{name}"}} 1.0' in lines


def test_without_others_it_is_the_own_page(stack: ExitStack) -> None:
    assert 'nightshift_process_up{process="api"} 1.0' in page(stack)


def test_a_dead_process_is_named_and_the_others_are_there(
    stack: ExitStack, running: Callable[[str], Path], tmp_path: Path
) -> None:
    left = tmp_path / "worker-2.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))  # nothing listens there any more

    lines = page(stack, running("worker-1"), left, tmp_path / "worker-3.sock")

    assert 'wings{worker="worker-1"} 2.0' in lines
    assert 'nightshift_process_up{process="worker-1"} 1.0' in lines
    assert 'nightshift_process_up{process="worker-2"} 0.0' in lines
    assert 'nightshift_process_up{process="worker-3"} 0.0' in lines


def test_a_process_that_hangs_is_not_waited_for(
    stack: ExitStack, running: Callable[[str], Path], tmp_path: Path
) -> None:
    stuck = stack.enter_context(socket.socket(socket.AF_UNIX))
    stuck.bind(str(tmp_path / "worker-2.sock"))
    stuck.listen()  # and never answers

    lines = page(stack, running("worker-1"), tmp_path / "worker-2.sock", config=IMPATIENT)

    assert 'wings{worker="worker-1"} 2.0' in lines
    assert 'nightshift_process_up{process="worker-2"} 0.0' in lines


def test_a_page_that_is_too_long_is_left_out(stack: ExitStack, running: Callable[[str], Path]) -> None:
    lines = page(stack, running("worker-1"), config=ScrapeConfig(page_bytes_max=10))

    assert 'nightshift_process_up{process="worker-1"} 0.0' in lines
    assert "feathers 3.0" in lines
