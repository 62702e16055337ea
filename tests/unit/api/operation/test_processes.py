"""The metrics of all processes of a machine on one page, whatever becomes of some of them."""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api.operation.processes import Exposition, NotMetrics, Processes, ScrapeConfig, merged, parsed
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
    return processes.exposition(own).decode().splitlines()


def test_every_process_is_on_the_page(stack, running):
    lines = page(stack, running("scheduler"), running("worker-1"), running("worker-2"))

    shown = {"feathers 3.0", "wings 2.0", 'wings{worker="worker-1"} 2.0', 'wings{worker="worker-2"} 2.0'}
    assert shown <= set(lines)
    for name in ("api", "scheduler", "worker-1", "worker-2"):
        assert f'nightshift_process_up{{process="{name}"}} 1.0' in lines


def test_a_dead_process_is_named_and_the_others_are_there(stack, running, tmp_path):
    left = tmp_path / "worker-2.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))  # nothing listens there any more

    lines = page(stack, running("worker-1"), left, tmp_path / "worker-3.sock")

    assert 'wings{worker="worker-1"} 2.0' in lines
    assert 'nightshift_process_up{process="worker-1"} 1.0' in lines
    assert 'nightshift_process_up{process="worker-2"} 0.0' in lines
    assert 'nightshift_process_up{process="worker-3"} 0.0' in lines


def test_a_process_that_hangs_is_not_waited_for(stack, running, tmp_path):
    stuck = stack.enter_context(socket.socket(socket.AF_UNIX))
    stuck.bind(str(tmp_path / "worker-2.sock"))
    stuck.listen()  # and never answers

    lines = page(stack, running("worker-1"), tmp_path / "worker-2.sock", config=IMPATIENT)

    assert 'wings{worker="worker-1"} 2.0' in lines
    assert 'nightshift_process_up{process="worker-2"} 0.0' in lines


def test_a_page_that_is_too_long_is_left_out(stack, running):
    lines = page(stack, running("worker-1"), config=ScrapeConfig(exposition_bytes_max=10))

    assert 'nightshift_process_up{process="worker-1"} 0.0' in lines
    assert "feathers 3.0" in lines


ODD_TEXTS = st.text(max_size=30)


def an_exposition(process: str, model: str = "demo", count: float = 1.0) -> Exposition:
    registry = CollectorRegistry()
    Counter("rows", "Rows\nof all kinds \\ of models", ("model",), registry=registry).labels(model).inc(count)
    Gauge("draining", "1 while it leaves", registry=registry).set(0)
    Histogram("seconds", "Time", ("model",), buckets=(1,), registry=registry).labels(model).observe(0.5)
    Gauge("process_open_fds", "Open files", registry=registry).set(7)
    return Exposition(process, generate_latest(registry).decode())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_workers_are_told_apart_by_a_label_and_what_every_process_has_by_the_process():
    counts = {"api": 0, "scheduler": 0, "worker-1": 2, "worker-2": 3}
    text = merged([parsed(an_exposition(name, count=count)) for name, count in counts.items()])

    values = samples(text)
    assert values[sample("rows_total", model="demo", worker="worker-1")] == 2
    assert values[sample("rows_total", model="demo", worker="worker-2")] == 3
    assert values[sample("draining", worker="worker-1")] == 0
    assert values[sample("seconds_bucket", model="demo", le="1.0", worker="worker-2")] == 1
    for process in counts:
        assert values[sample("process_open_fds", process=process)] == 7


def test_all_lines_of_a_metric_stand_together_and_it_is_described_once():
    lines = merged([parsed(an_exposition("worker-1")), parsed(an_exposition("worker-2"))]).splitlines()

    names = [line.removeprefix("# HELP ").removeprefix("# TYPE ")[:6] for line in lines]
    metrics = [name for name, _ in groupby(names)]
    assert len(metrics) == len(set(metrics))
    assert len([line for line in lines if line.startswith("# TYPE rows_total ")]) == 1


@settings(max_examples=30)
@given(ODD_TEXTS, ODD_TEXTS)
def test_whatever_a_model_is_called_its_samples_keep_their_values(first, second):
    """Line breaks, quotes, braces and backslashes among it."""
    text = merged([parsed(an_exposition("worker-1", first, 2)), parsed(an_exposition("worker-2", second, 3))])

    values = samples(text)
    assert values[sample("rows_total", model=first, worker="worker-1")] == 2
    assert values[sample("rows_total", model=second, worker="worker-2")] == 3
    assert len(values) == len(samples(an_exposition("worker-1").text)) * 2


@pytest.mark.parametrize("text", ["<html>", "rows_total 3\n", "# TYPE rows counter\nwings 3\n"])
def test_another_page_is_refused(text):
    with pytest.raises(NotMetrics):
        parsed(Exposition("worker-1", text))
