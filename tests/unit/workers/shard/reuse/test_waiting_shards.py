"""A shard whose rows all wait for those of others: its place, its time and what keeps it from going on."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nightshift.jobs import BulkClaim
from tests.unit.workers.scripted import claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished, wait_until
from tests.unit.workers.shard.reuse.reusing import NewWorker, waiting
from workers.shard import runner
from workers.shard.held_time import HeldTime
from workers.shard.rows import shard_rows
from workers.shard.runner import ShardRunner
from workers.shard.running import WAITING_SHARDS, Shards


@pytest.fixture
def shards(worker: NewWorker) -> Shards:
    return Shards(replace(worker(), held_time=HeldTime()), CONFIG, on_place_freed=lambda: None)


@pytest.fixture
def elsewhere(model, write_input, run, worker, store) -> Callable[..., ShardRunner]:
    """A shard of another worker runs these requests."""

    def start(*texts: str) -> ShardRunner:
        write_input([batch_line(number, text) for number, text in enumerate(texts)])
        before = len(model.running)
        started = run(claim_bulk(store, "worker_b"), dependencies=worker())
        model.wait_for(before + len(texts))
        return started

    return start


def answer_all(model) -> None:
    model.echo = True
    for each in model.wait_for(0):
        model.answer(each.id)


def test_a_shard_that_only_waits_leaves_its_place(
    store, model, write_input, shards, elsewhere, clock
) -> None:
    plan_bulk(store, INPUT, shards=2)
    first = elsewhere("same")
    waits = shards.run(claim_bulk(store), clock())
    wait_until(lambda: shards.places_free == 1)

    write_input([batch_line(0, "other")])
    plan_bulk(store, INPUT)
    beside = shards.run(claim_bulk(store), clock())
    model.wait_for(2)
    assert shards.places_free == 0
    answer_all(model)
    for each in (first, waits, beside):
        finished(each)


def test_a_shard_has_its_place_again_once_a_row_runs(
    store, model, write_input, shards, elsewhere, clock
) -> None:
    plan_bulk(store, INPUT, shards=2)
    first = elsewhere("same")
    waits = shards.run(claim_bulk(store), clock())
    wait_until(lambda: shards.places_free == 1)

    first.drain()
    finished(first)
    model.wait_for(1)
    wait_until(lambda: shards.places_free == 0)
    answer_all(model)
    finished(waits)
    wait_until(lambda: shards.places_free == 1)


@pytest.mark.parametrize("rows", [["same"], ["same", "own"]])
def test_a_shard_that_waits_for_a_moment_or_runs_a_row_keeps_its_place(
    store, model, write_input, shards, elsewhere, clock, monkeypatch, rows
) -> None:
    monkeypatch.setattr(runner, "WAITS_S", 3600.0 if len(rows) == 1 else 0.0)
    plan_bulk(store, INPUT, shards=2)
    first = elsewhere("same")
    write_input([batch_line(number, text) for number, text in enumerate(rows)])
    waits = shards.run(claim_bulk(store), clock())
    wait_until(lambda: waiting(waits) == 1)
    model.wait_for(len(rows))

    assert shards.places_free == 0
    assert not waits.only_waits
    answer_all(model)
    for each in (first, waits):
        finished(each)


def test_shards_that_wait_are_bounded_and_make_room_for_other_jobs(
    store, model, shards, elsewhere, clock
) -> None:
    job = plan_bulk(store, INPUT, shards=20)
    first = elsewhere("same")
    held = []
    while shards.places_free:
        held.append(shards.run(claim_bulk(store), clock()))
        wait_until(lambda: held[-1] in shards._waiting)
        assert shards.excluded_jobs[0] == [job.id]
        assert (shards.excluded_jobs[-1] == [job.id]) == (len(held) >= WAITING_SHARDS)

    assert len(held) == WAITING_SHARDS + 2, "as many as places may be about to end besides"
    answer_all(model)
    for each in (first, *held):
        finished(each)
    wait_until(lambda: shards.places_free == 1)
    assert not any(shards.excluded_jobs)


def test_a_shard_that_only_waits_is_charged_no_time_beside_another(
    store, model, write_input, shards, elsewhere, clock
) -> None:
    plan_bulk(store, INPUT, shards=2)
    first = elsewhere("same")
    claim = claim_bulk(store)
    waits = shards.run(claim, clock())
    wait_until(lambda: waits in shards._waiting)
    write_input([batch_line(0, "other")])
    plan_bulk(store, INPUT)
    other_claim = claim_bulk(store)
    beside = shards.run(other_claim, clock())
    model.wait_for(2)

    charge(shards, claim)
    assert charge(shards, other_claim) > 0
    assert charge(shards, claim) == 0
    answer_all(model)
    for each in (first, waits, beside):
        finished(each)


def charge(shards: Shards, claim: BulkClaim) -> float:
    with shards.held_time.charged(claim.lease) as time:
        return time.on_demand_s


def test_an_engine_is_not_starved_by_shards_that_only_wait(store, model, shards, elsewhere, clock) -> None:
    plan_bulk(store, INPUT, shards=2)
    first = elsewhere("same")
    waits = shards.run(claim_bulk(store), clock())
    wait_until(lambda: waits in shards._waiting)

    before = shards.starvation.seconds()
    assert shards.starvation.seconds() == before
    answer_all(model)
    for each in (first, waits):
        finished(each)


def test_rows_wait_up_to_so_many_characters(
    store, model, write_input, run, worker, elsewhere, monkeypatch
) -> None:
    monkeypatch.setattr(shard_rows, "WAITING_CHARS_MAX", 1_000)
    plan_bulk(store, INPUT, shards=2)
    texts = [f"{n} {500 * 'x'}" for n in range(8)]
    first = elsewhere(*texts)
    second = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: second._rows.is_full)

    assert waiting(second) == 2
    answer_all(model)
    for each in (first, second):
        finished(each)
