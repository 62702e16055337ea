"""What a worker tells Prometheus of itself."""

from prometheus_client import generate_latest

from tests.unit.workers.scripted import ScriptedServer
from workers.health.metrics import WorkerMetrics


def some_metrics(server: ScriptedServer, *, is_draining: bool = False) -> WorkerMetrics:
    return WorkerMetrics(lambda: [server], lambda: {"online": 3, "bulk": 2}, lambda: is_draining)


def scraped(metrics: WorkerMetrics) -> dict[str, float]:
    """Every sample."""
    text = generate_latest(metrics.registry).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_scrape_tells_leases_steps_and_memory() -> None:
    server = ScriptedServer("demo")
    server.steps, server.step_seconds = 7, 1.5

    samples = scraped(some_metrics(server, is_draining=True))

    assert samples['nightshift_worker_leases{kind="online"}'] == 3
    assert samples['nightshift_worker_leases{kind="bulk"}'] == 2
    assert samples["nightshift_worker_draining"] == 1
    assert samples['nightshift_worker_steps_total{model="demo"}'] == 7
    assert samples['nightshift_worker_step_seconds_total{model="demo"}'] == 1.5
    assert samples['nightshift_worker_step_age_seconds{model="demo"}'] == 0
    assert samples["process_resident_memory_bytes"] > 0


def test_the_age_of_a_step_under_way_grows() -> None:
    server = ScriptedServer("demo")
    server.stepping_since_s = 0.0  # a step as old as the clock

    assert scraped(some_metrics(server))['nightshift_worker_step_age_seconds{model="demo"}'] > 0
