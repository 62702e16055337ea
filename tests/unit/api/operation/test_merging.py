"""Pages of several processes as one."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics.merging import NotMetrics, Page, merged, parsed

ODD_TEXTS = st.text(max_size=30)


def a_page(process: str, model: str = "demo", count: float = 1.0) -> Page:
    registry = CollectorRegistry()
    Counter("rows", "Rows\nof all kinds \\ of models", ("model",), registry=registry).labels(model).inc(count)
    Gauge("draining", "1 while it leaves", registry=registry).set(0)
    Histogram("seconds", "Time", ("model",), buckets=(1,), registry=registry).labels(model).observe(0.5)
    Gauge("process_open_fds", "Open files", registry=registry).set(7)
    return Page(process, generate_latest(registry).decode())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_workers_are_told_apart_by_a_label() -> None:
    text = merged([parsed(a_page("worker-1", count=2)), parsed(a_page("worker-2", count=3))])

    found = samples(text)
    assert found[of("rows_total", model="demo", worker="worker-1")] == 2
    assert found[of("rows_total", model="demo", worker="worker-2")] == 3
    assert found[of("draining", worker="worker-1")] == 0
    assert found[of("seconds_bucket", model="demo", le="1.0", worker="worker-2")] == 1


def test_what_every_process_has_is_told_apart_by_the_process() -> None:
    text = merged([parsed(a_page("api")), parsed(a_page("scheduler")), parsed(a_page("worker-1"))])

    found = samples(text)
    for process in ("api", "scheduler", "worker-1"):
        assert found[of("process_open_fds", process=process)] == 7


def test_all_lines_of_a_metric_stand_together_and_it_is_described_once() -> None:
    lines = merged([parsed(a_page("worker-1")), parsed(a_page("worker-2"))]).splitlines()

    names = [line.removeprefix("# HELP ").removeprefix("# TYPE ")[:6] for line in lines]
    metrics = [name for name, _ in groupby(names)]
    assert len(metrics) == len(set(metrics))
    assert len([line for line in lines if line.startswith("# TYPE rows_total ")]) == 1


@given(ODD_TEXTS, ODD_TEXTS)
def test_whatever_a_model_is_called_its_samples_keep_their_values(first: str, second: str) -> None:
    """Line breaks, quotes, braces and backslashes among it."""
    text = merged([parsed(a_page("worker-1", first, 2)), parsed(a_page("worker-2", second, 3))])

    found = samples(text)
    assert found[of("rows_total", model=first, worker="worker-1")] == 2
    assert found[of("rows_total", model=second, worker="worker-2")] == 3
    assert len(found) == len(samples(a_page("worker-1").text)) * 2


@pytest.mark.parametrize("text", ["<html>", "rows_total 3\n", "# TYPE rows counter\nwings 3\n"])
def test_another_page_is_refused(text: str) -> None:
    with pytest.raises(NotMetrics):
        parsed(Page("worker-1", text))


def test_empty_pages_are_an_empty_page() -> None:
    assert merged([parsed(Page("worker-1", ""))]).strip() == ""
