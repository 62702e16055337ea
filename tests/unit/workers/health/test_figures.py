"""Figures that a worker tells with its heartbeats: counters that exist anyway, over the last seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import DURATIONS_WINDOW_S, RATES_WINDOW_S, DeviceFigures
from nightshift.store import Store
from nightshift_engine import EngineHistograms
from tests.unit.workers.scripted import ManualClock, ScriptedServer, claim_online
from workers.health.figures import Figures
from workers.online.times import FIRST_TOKEN_BUCKETS_S, OnlineTimes


class CountingServer(ScriptedServer):
    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.counted = EngineHistograms()

    @property
    def histograms(self) -> EngineHistograms:
        return self.counted


@dataclass
class Place:
    clock: ManualClock = field(default_factory=ManualClock)
    server: CountingServer = field(default_factory=lambda: CountingServer("demo"))
    online: OnlineTimes = field(default_factory=OnlineTimes)
    rows: dict[str, float] = field(default_factory=dict)
    starved: dict[str, float] = field(default_factory=dict)
    device: DeviceFigures | None = None

    def __post_init__(self) -> None:
        self.figures = Figures(
            lambda: [self.server],
            self.held,
            self.online,
            rows_finished=lambda: self.rows,
            starved_seconds=lambda: self.starved,
            device=lambda: self.device,
            clock_s=self.clock,
        )

    def held(self) -> Mapping[str, int]:
        return {"bulk": 2, "online": 1}

    def generate(self, tokens: int) -> None:
        self.server.counted.of_class("standard").generation_tokens += tokens


def test_rates_are_means_over_the_last_seconds() -> None:
    place = Place()
    assert place.figures.now().models["demo"].generation_tokens_per_s is None, "one look tells no rate"

    for _ in range(10):
        place.clock.advance(5)
        place.generate(500)
        place.rows["demo"] = place.rows.get("demo", 0) + 10
        place.starved["demo"] = place.starved.get("demo", 0) + 1
        figures = place.figures.now().models["demo"]
    assert (figures.generation_tokens_per_s, figures.rows_per_s, figures.starved_fraction) == (
        100.0,
        2.0,
        0.2,
    )

    for _ in range(int(RATES_WINDOW_S / 5)):
        place.clock.advance(5)
        figures = place.figures.now().models["demo"]
    assert (figures.generation_tokens_per_s, figures.rows_per_s, figures.starved_fraction) == (0.0, 0.0, 0.0)


def test_heartbeats_that_follow_each_other_closely_shorten_no_window() -> None:
    place = Place()
    for _ in range(40):
        place.figures.now()
        place.clock.advance(0.1)
    place.generate(400)
    place.clock.advance(1)

    assert place.figures.now().models["demo"].generation_tokens_per_s == pytest.approx(400 / 5)


def test_a_model_that_is_loaded_anew_counts_from_nothing() -> None:
    place = Place()
    place.generate(1000)
    place.figures.now()
    place.server.counted = EngineHistograms()
    place.generate(50)
    place.clock.advance(5)

    assert place.figures.now().models["demo"].generation_tokens_per_s == 10.0


def test_durations_are_of_requests_of_the_last_minute(store: Store) -> None:
    place = Place()
    claim = claim_online(store, "hello")
    place.figures.now()
    place.online.first_token(claim, submitted_s=0.0)  # as old as the clock
    place.clock.advance(5)

    first = place.figures.now().models["demo"].first_token_s
    assert list(first) == ["standard"]
    assert first["standard"].count == 1

    for _ in range(int(DURATIONS_WINDOW_S / 5) + 1):
        place.clock.advance(5)
        durations = place.figures.now().models["demo"].first_token_s
    assert durations["standard"] == Durations.from_counts(
        FIRST_TOKEN_BUCKETS_S, [0] * (len(FIRST_TOKEN_BUCKETS_S) + 1)
    )


def test_leases_memory_and_the_device_are_told() -> None:
    place = Place(device=DeviceFigures(kind="cpu"))

    figures = place.figures.now()

    assert (figures.shards, figures.requests, figures.device) == (2, 1, DeviceFigures(kind="cpu"))
    assert figures.memory_bytes is not None
    assert figures.memory_bytes > 1_000_000
