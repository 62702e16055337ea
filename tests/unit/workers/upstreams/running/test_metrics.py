"""An operator sees what each upstream does, whatever models share it."""

from pathlib import Path

import pytest

from tests.helpers.upstreams import SimulatedUpstream
from tests.helpers.upstreams.behaviours import holds, too_many, wrong_key
from tests.helpers.waiting import wait_for
from tests.unit.workers.health.test_metrics import scraped
from tests.unit.workers.scripted import ManualClock
from tests.unit.workers.upstreams.conftest import Asker, Opening
from workers.health.figures import Figures
from workers.health.metrics import WorkerMetrics
from workers.online.times import OnlineTimes


@pytest.fixture
def asker(upstream: SimulatedUpstream, opened: Opening, tmp_path: Path) -> Asker:
    """A model of an upstream with a name and prices."""
    file = tmp_path / "upstreams.yaml"
    file.write_text(
        f"upstreams:\n- url: {upstream.url}\n  name: gpu-1\n"
        "  price_per_million_input_tokens: 1000000\n  price_per_million_output_tokens: 2000000\n"
    )
    return opened(str(file))


def samples(*askers: Asker) -> dict[str, float]:
    """The samples of upstreams, without their prefix and the upstream's label."""
    metrics = WorkerMetrics(lambda: [asker.server for asker in askers], dict, lambda: False)
    prefix = "nightshift_upstream_"
    return {
        name.removeprefix(prefix).replace('upstream="gpu-1"', "").replace("{}", ""): value
        for name, value in scraped(metrics).items()
        if name.startswith(prefix)
    }


def test_requests_tokens_and_their_price_are_counted(asker: Asker) -> None:
    usages = [asker.chat(text).result.usage for text in ("one", "two")]

    told = samples(asker, asker)  # a second model of the same upstreams adds nothing

    read = sum(usage.prompt_tokens for usage in usages)
    generated = sum(usage.completion_tokens for usage in usages)
    assert told["requests_total"] == 2
    assert told["prompt_tokens_total"] == read > 0
    assert told["generation_tokens_total"] == generated > 0
    assert told["cost_total"] == read + 2 * generated
    assert told["requests_in_flight"] == told["away"] == 0
    assert told["concurrency_limit"] > 1


def test_errors_are_counted_by_kind_and_the_first_tokens_of_streams(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(too_many(times=1))
    assert asker.chat().text
    assert asker.chat(is_bulk=False, stream=True).text

    told = samples(asker)

    assert told['errors_total{kind="overloaded",}'] == 1
    assert told["first_token_seconds_count"] == 1


def test_an_upstream_that_refuses_its_key_is_away(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(wrong_key())
    assert asker.chat().end.is_returned

    told = samples(asker)
    assert (told["away"], told['errors_total{kind="key_refused",}']) == (1, 1)


def test_a_workers_figures_tell_the_tokens_and_requests_of_upstreams(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    clock = ManualClock()
    figures = Figures(lambda: [asker.server], dict, OnlineTimes(), clock_s=clock)
    before = figures.now().models["simulated"]
    clock.advance(5)
    generated = asker.chat("one").result.usage.completion_tokens
    after = figures.now().models["simulated"]
    assert (before.generation_tokens_per_s, after.generation_tokens_per_s) == (None, generated / 5)

    upstream.behave(holds())
    asker.chat("held")
    upstream.wait_until("it has the row", lambda seen: seen.in_flight == 1)
    wait_for("the worker tells it", lambda: figures.now().models["simulated"].running == 1)
    upstream.behave()
