"""Metrics that a worker with real engines shows Prometheus."""

import threading
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from nightshift.fleet.costs import Prices
from nightshift.fleet.figures import DeviceFigures
from nightshift.process.metrics.engine import OF_STATS
from nightshift.process.metrics.family import Process
from nightshift.process.upstreams import Upstream
from nightshift.store import Store
from tests.helpers.metrics import assert_as_declared
from tests.unit.workers.scripted import ScriptedServer, claim_online
from tests.unit.workers.serving.conftest import SHIPPED, Listener, chat, started, submit
from workers.health.metrics import ShardCounts, WorkerMetrics
from workers.online.times import OnlineTimes
from workers.serving.models import Models
from workers.serving.residency.residency import ResidencyCounts
from workers.upstreams.connection import Connection
from workers.upstreams.running.metrics import UpstreamMetrics
from workers.upstreams.running.upstream import RunningUpstream

DECODER, ENCODER = (path.name for path in SHIPPED)


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    """Nothing was asked of them before."""
    with started(*SHIPPED) as models:
        yield models


def scrape(models: Models) -> dict[str, float]:
    metrics = WorkerMetrics(lambda: models, dict, lambda: False)
    text = generate_latest(metrics.registry).decode()
    lines = [line for line in text.splitlines() if line.startswith("nightshift_engine_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def scrape_after(models: Models, request: Listener) -> dict[str, float]:
    """Once the step that answered has ended, on every engine."""
    request.wait()
    for server in models:
        is_between_steps = threading.Event()
        server.after_cancelled(is_between_steps.set)
        assert is_between_steps.wait(60)
    return scrape(models)


def test_counters_move_with_what_the_engine_computes(models: Models) -> None:
    before = scrape(models)

    first = scrape_after(models, chat(models, "48213 " * 20))
    again = scrape_after(models, chat(models, "48213 " * 20, max_tokens=3))

    def rise(name: str, *, to: dict[str, float], since: dict[str, float]) -> float:
        label = f'nightshift_engine_{name}_total{{model="{DECODER}"}}'
        return to[label] - since[label]

    assert rise("tokens_generated", to=first, since=before) > 3
    assert rise("tokens_generated", to=again, since=first) == 3
    assert rise("tokens_computed", to=first, since=before) > 100
    assert 3 <= rise("steps", to=again, since=first) <= 4
    assert rise("tokens_reused", to=first, since=before) == 0
    assert rise("prefix_queries", to=first, since=before) == rise("prefix_queries", to=again, since=first)
    assert rise("prefix_queries", to=again, since=first) > rise("tokens_reused", to=again, since=first)
    assert rise("tokens_reused", to=again, since=first) >= 64, "the second prompt is in KV memory"
    assert again[f'nightshift_engine_sequences_running{{model="{DECODER}"}}'] == 0
    assert again[f'nightshift_engine_kv_blocks_used{{model="{DECODER}"}}'] == 0
    assert again[f'nightshift_engine_kv_blocks{{model="{DECODER}"}}'] > 0


def test_an_encoder_shows_the_figures_it_has(models: Models) -> None:
    before = scrape(models)

    body = {"model": ENCODER, "input": ["some text", "another"]}
    after = scrape_after(models, submit(models, "/v1/embeddings", body))

    of_encoder = {name for name in after if f'model="{ENCODER}"' in name}
    assert {name.partition("{")[0] for name in of_encoder} == {
        "nightshift_engine_busy_fraction",
        "nightshift_engine_roofline_fraction",
        "nightshift_engine_roofline_seconds_total",
        "nightshift_engine_sequences_waiting",
        "nightshift_engine_steps_total",
        "nightshift_engine_tokens_computed_total",
        "nightshift_engine_tokens_padded_total",
    }
    label = f'nightshift_engine_tokens_computed_total{{model="{ENCODER}"}}'
    assert after[label] - before[label] == 4 + 3  # each with its two special tokens
    padded = f'nightshift_engine_tokens_padded_total{{model="{ENCODER}"}}'
    assert after[padded] - before[padded] == 1
    least = f'nightshift_engine_roofline_seconds_total{{model="{ENCODER}"}}'
    assert after[least] > before[least]


def test_a_decoder_has_every_figure(models: Models) -> None:
    samples = scrape_after(models, chat(models, "48213"))
    shown = [name for name in samples if f'model="{DECODER}"' in name]

    eager = [name for name in shown if "eager_steps" in name]
    assert len(shown) - len(eager) == len(OF_STATS) - 1 + 2  # padding is an encoder's; busy, roofline
    assert [samples[name] for name in eager] == [0] * len(eager)  # no graphs on this device
    label = f'{{model="{DECODER}"}}'
    assert samples[f"nightshift_engine_roofline_seconds_total{label}"] > 0
    assert samples[f"nightshift_engine_roofline_fraction{label}"] > 0


def test_exactly_what_is_declared_of_a_worker_is_exported(models: Models, store: Store) -> None:
    chat(models, "48213").wait()
    online = OnlineTimes()
    claim = claim_online(store, "48213")
    online.first_token(claim, 0.0)
    online.answered(claim, 0.0)
    config = Upstream(url="http://gpu-1:8000/v1")
    upstream = RunningUpstream(config, Connection(config, None, answer_bytes_max=1))
    upstream.counts.errors["Overloaded"] += 1
    elsewhere = ScriptedServer("elsewhere")
    elsewhere.collector = UpstreamMetrics([upstream])
    metrics = WorkerMetrics(
        lambda: [*models, elsewhere],
        lambda: {"online": 1, "bulk": 0},
        lambda: False,
        online,
        ResidencyCounts(loads=1),
        ShardCounts(lambda: {DECODER: 3}, lambda: {DECODER: 0.5}, prices=Prices(on_demand=2.0)),
        lambda: DeviceFigures(kind="cuda", memory_bytes=80, memory_used_bytes=40, utilisation=0.5),
    )

    assert_as_declared(generate_latest(metrics.registry).decode(), Process.WORKER)
