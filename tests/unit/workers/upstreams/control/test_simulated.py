"""The rules at work on simulated upstreams: nearly the throughput of the best concurrency found by hand."""

import math
from collections.abc import Callable

import pytest

from tests.unit.workers.upstreams.control.simulation import Server, Simulation, Storm
from workers.upstreams.control import RateBudget

MakeServer = Callable[[], Server]

KNEE_32 = lambda batch: 0.01 * max(1.0, batch / 32)  # noqa: E731
SATURATING = lambda batch: 0.01 + 0.01 * batch / 16  # noqa: E731


@pytest.mark.parametrize(
    ("make", "best", "start_s", "end_s"),
    [
        pytest.param(lambda: Server(256), 256, 15, 40, id="256 slots and a queue"),
        pytest.param(lambda: Server(100), 100, 20, 60, id="100 slots and a queue"),
        pytest.param(lambda: Server(8), 8, 40, 200, id="8 slots and a queue"),
        pytest.param(lambda: Server(256, accepted_max=64), 64, 15, 60, id="64 slots and 429 above"),
        pytest.param(lambda: Server(256, KNEE_32), 32, 20, 100, id="steps that take longer above 32"),
        pytest.param(lambda: Server(256, SATURATING), 256, 50, 150, id="steps that take longer with each"),
    ],
)
def test_the_throughput_is_within_5_percent_of_the_best_concurrency(
    make: MakeServer, best: int, start_s: float, end_s: float
):
    by_hand = Simulation([make()], fixed=best).run(end_s)
    by_itself = Simulation([make()]).run(end_s)

    assert by_itself.tokens_per_s(start_s, end_s) >= 0.95 * by_hand.tokens_per_s(start_s, end_s)


def test_256_slots_are_taken_within_seconds():
    simulation = Simulation([Server(256)])
    reached_s = next(at_s for at_s, limit in simulation.run(15).limits if limit >= 256)
    assert reached_s <= 10, "answers take 1 s: five doublings"


@pytest.mark.parametrize(("slots", "end_s"), [(4, 300), (20, 200), (60, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_does_not_creep_up_where_requests_only_queue(slots: int, end_s: float, seed: int):
    simulation = Simulation([Server(slots)], seed=seed).run(end_s)
    assert simulation.limits[-1][1] <= 3 * slots


def test_few_requests_are_refused_by_an_upstream_with_a_limit_of_its_own():
    simulation = Simulation([Server(256, accepted_max=64)]).run(100)
    assert simulation.servers[0].refused <= 0.03 * len(simulation.done)


def test_the_limit_follows_slots_that_halve_and_come_back():
    server = Server(64)
    simulation = Simulation([server]).run(30)
    full = simulation.tokens_per_s(15, 30)
    server.slots = 32
    simulation.run(100)
    assert simulation.limits[-1][1] <= 2 * 32
    assert simulation.tokens_per_s(60, 100) >= 0.95 * full / 2
    server.slots = 64
    simulation.run(200)
    assert simulation.tokens_per_s(180, 200) >= 0.95 * full


@pytest.mark.parametrize("retry_after_s", [None, 5.0])
@pytest.mark.parametrize("accepted_max", [math.inf, 128])
def test_a_storm_of_refusals_is_over_within_10_seconds_of_its_end(
    retry_after_s: float | None, accepted_max: float
):
    storm = Storm(20, 80, retry_after_s)
    server = Server(128, accepted_max=accepted_max, storms=[storm])
    simulation = Simulation([server]).run(20)
    before_storm = server.refused
    simulation.run(79)
    in_storm = server.refused - before_storm
    simulation.run(95)
    before = simulation.tokens_per_s(10, 20)
    assert max(simulation.tokens_per_s(at_s, at_s + 2) for at_s in range(80, 89)) >= 0.95 * before
    assert in_storm <= 128 + 60, "the requests in flight, and few trials"


@pytest.mark.parametrize(
    ("sends_headers", "budget"),
    [(False, 600), (True, None), (False, None)],
    ids=["told", "headers", "refusals"],
)
def test_600_requests_a_minute_are_used(sends_headers: bool, budget: int | None):
    server = Server(256, requests_per_minute=600, sends_headers=sends_headers)
    simulation = Simulation([server], budget=RateBudget(budget)).run(300)

    assert simulation.requests_per_s(150, 300) >= 0.95 * 10
    if sends_headers or budget:
        assert server.refused == 0


def test_two_upstreams_of_different_pace_are_both_used_in_full():
    def make() -> list[Server]:
        return [Server(32), Server(32, lambda batch: 0.01 / 3)]

    by_hand = Simulation(make(), fixed=32).run(40)
    simulation = Simulation(make()).run(60)

    assert simulation.tokens_per_s(30, 60) >= 0.95 * by_hand.tokens_per_s(10, 40)
    fast, slow = (simulation.tokens_per_s(30, 60, server) for server in (1, 0))
    assert 2.8 <= fast / slow <= 3.2


@pytest.mark.parametrize("seed", range(2))
def test_chats_wait_at_most_twice_as_long_beside_bulk_rows(seed: int):
    alone = Simulation([Server(64)], interactive_every_s=0.4, has_bulk=False, seed=seed).run(60)
    bulk = Simulation([Server(64)], fixed=64, seed=seed).run(60)
    beside = Simulation([Server(64)], interactive_every_s=0.4, seed=seed).run(150)
    unloaded, loaded = alone.first_token_s(10), beside.first_token_s(50)

    assert loaded[int(0.5 * len(loaded))] <= 1.2 * unloaded[len(unloaded) // 2]
    assert loaded[int(0.9 * len(loaded))] <= 2 * unloaded[len(unloaded) // 2]
    assert beside.tokens_per_s(50, 150) >= 0.8 * bulk.tokens_per_s(20, 60), "and bulk rows go on"


def test_bulk_rows_make_room_where_steps_grow_with_the_batch():
    def make() -> list[Server]:
        return [Server(256, lambda batch: 0.01 + 0.04 * batch / 256)]

    alone = Simulation(make(), interactive_every_s=0.5, has_bulk=False).run(60).first_token_s(10)
    beside = Simulation(make(), interactive_every_s=0.5).run(180).first_token_s(80)

    assert beside[len(beside) // 2] <= 2 * alone[len(alone) // 2]
