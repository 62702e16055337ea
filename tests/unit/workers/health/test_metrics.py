"""Metrics that a worker shows Prometheus."""

import pytest
from prometheus_client import generate_latest

from nightshift.fleet.figures import DeviceFigures
from nightshift_engine import EngineStats
from tests.unit.workers.scripted import ScriptedServer
from workers.health.metrics import WorkerMetrics


def scraped(metrics: WorkerMetrics) -> dict[str, float]:
    """Every sample."""
    text = generate_latest(metrics.registry).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_scrape_tells_leases_steps_and_memory() -> None:
    server = ScriptedServer("demo")
    server.steps, server.step_seconds = 7, 1.5
    metrics = WorkerMetrics(lambda: [server], lambda: {"online": 3, "bulk": 2}, lambda: True)

    samples = scraped(metrics)

    assert samples['nightshift_worker_leases{kind="online"}'] == 3
    assert samples['nightshift_worker_leases{kind="bulk"}'] == 2
    assert samples["nightshift_worker_draining"] == 1
    assert samples['nightshift_worker_steps_total{model="demo"}'] == 7
    assert samples['nightshift_worker_step_seconds_total{model="demo"}'] == 1.5
    assert samples['nightshift_worker_step_age_seconds{model="demo"}'] == 0
    assert samples["process_resident_memory_bytes"] > 0

    server.stepping_since_s = 0.0  # a step as old as the clock
    assert scraped(metrics)['nightshift_worker_step_age_seconds{model="demo"}'] > 0


@pytest.mark.parametrize("device", [None, DeviceFigures(kind="cpu", memory_bytes=100)])
def test_what_is_not_known_of_a_device_is_missing_and_not_0(device: DeviceFigures | None) -> None:
    metrics = WorkerMetrics(list, dict, lambda: False, device=lambda: device)

    told = {name.partition("{")[0] for name in scraped(metrics) if "device" in name}

    assert told == (set() if device is None else {"nightshift_worker_device_memory_bytes"})


def test_steps_without_a_graph_are_told_by_their_reason() -> None:
    server = ScriptedServer("demo")
    server.engine_stats = EngineStats(
        *([0] * 13), max_num_batched_tokens=8, eager_steps={"not_recorded": 3, "too_large": 1}
    )
    metrics = WorkerMetrics(lambda: [server], lambda: {"online": 0, "bulk": 0}, lambda: False)

    told = {name: count for name, count in scraped(metrics).items() if "eager" in name}

    assert told == {
        'nightshift_engine_eager_steps_total{model="demo",reason="not_recorded"}': 3,
        'nightshift_engine_eager_steps_total{model="demo",reason="too_large"}': 1,
    }
