"""Engines that stand still although shards are held."""

import pytest

from tests.unit.workers.scripted import ManualClock
from workers.shard.starving import Starvation


@pytest.fixture
def busy() -> dict[str, float]:
    return {}


@pytest.fixture
def starvation(busy: dict[str, float], clock: ManualClock) -> Starvation:
    return Starvation(lambda model_id: busy.get(model_id, 0.0), clock)


def test_an_engine_starves_while_a_shard_is_held_and_no_step_runs(
    starvation: Starvation, busy: dict[str, float], clock: ManualClock
) -> None:
    starvation.begin("demo")
    clock.advance(10)
    busy["demo"] = 4.0
    assert starvation.seconds() == {"demo": 6.0}

    starvation.end("demo")
    clock.advance(100)
    assert starvation.seconds() == {"demo": 6.0}, "without a shard it rests"


def test_several_shards_of_a_model_starve_it_once(starvation: Starvation, clock: ManualClock) -> None:
    starvation.begin("demo")
    starvation.begin("demo")
    clock.advance(5)
    starvation.end("demo")
    clock.advance(5)
    starvation.end("demo")

    assert starvation.seconds() == {"demo": 10.0}


def test_models_starve_apart(starvation: Starvation, busy: dict[str, float], clock: ManualClock) -> None:
    starvation.begin("demo")
    starvation.begin("other")
    clock.advance(8)
    busy["other"] = 8.0

    assert starvation.seconds() == {"demo": 8.0, "other": 0.0}


def test_time_in_steps_before_the_shard_came_is_not_counted(
    starvation: Starvation, busy: dict[str, float], clock: ManualClock
) -> None:
    busy["demo"] = 50.0
    starvation.begin("demo")
    clock.advance(10)
    busy["demo"] = 53.0

    assert starvation.seconds() == {"demo": 7.0}
