"""A job's rows with the same request are run once, whichever workers have them."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from nightshift.broker.first_rows import RowPlace
from nightshift.errors import DatabaseUnavailable, StorageError
from nightshift.jobs import ShardState
from tests.unit.workers.scripted import claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import (
    CONFIG,
    INPUT,
    batch_line,
    finished,
    shard_of,
    wait_until,
)
from tests.unit.workers.shard.reuse.reusing import Remembered, prompts, reused, waiting
from workers.shard import runner as shard_runner
from workers.shard.rows import first_results, shard_rows
from workers.shard.rows.first_results import FirstResults
from workers.shard.rows.run_once import ENTRY_BYTES
from workers.shard.runner import ShardRunner


def test_a_request_is_run_once_by_two_workers(store, objects, model, write_input, run, worker) -> None:
    model.echo = True
    write_input([batch_line(n, f"text {n % 2}") for n in range(4)])
    job = plan_bulk(store, INPUT, shards=4)
    workers = [worker(), worker()]
    runners = [run(claim_bulk(store), dependencies=workers[n % 2]) for n in range(4)]
    for each in runners:
        finished(each)

    assert prompts(model) == ["text 0", "text 1"]
    assert reused(store, job) == 4 * 4 - 2
    assert shard_of(store, job).state is ShardState.DONE


def test_a_row_waits_for_the_one_that_another_worker_runs(
    store, objects, model, write_input, run, worker
) -> None:
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    first = run(claim_bulk(store), dependencies=worker())
    [inference] = model.wait_for(1)
    second = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: waiting(second) == 1)

    model.answer(inference.id)
    finished(first)
    finished(second)
    assert prompts(model) == ["same"]


def test_the_result_is_there_before_the_first_rows_shard_ends(store, model, write_input, run, worker) -> None:
    write_input([batch_line(0, "slow"), batch_line(1, "same")])
    plan_bulk(store, INPUT, shards=2)
    holding = run(claim_bulk(store), dependencies=worker())
    slow, same = model.wait_for(2)
    model.answer(same.id)
    second = run(claim_bulk(store), dependencies=worker())

    wait_until(lambda: waiting(second) == 1)  # the other one's result was stored
    assert holding.is_alive
    model.answer(slow.id)
    finished(holding)
    finished(second)
    assert prompts(model) == ["same", "slow"]


def test_rows_run_themselves_where_the_first_one_fails(store, model, write_input, run, worker) -> None:
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=3)
    first = run(claim_bulk(store), dependencies=worker())
    [inference] = model.wait_for(1)
    workers = [worker(), worker()]
    others = [run(claim_bulk(store), dependencies=each) for each in workers]
    for each in others:
        wait_until(lambda each=each: waiting(each) == 1)
    for _ in range(3):  # the engine's tries
        [inference] = model.wait_for(1)
        model.fail(inference.id, "the logits are not finite")
    finished(first)

    for inference in model.wait_for(2):
        model.answer(inference.id)
    for each in others:
        finished(each)


def test_one_row_runs_where_the_first_ones_shard_was_handed_back(
    store, model, write_input, run, worker
) -> None:
    write_input([batch_line(0, "same")])
    job = plan_bulk(store, INPUT, shards=3)
    first = run(claim_bulk(store), dependencies=worker())
    model.wait_for(1)
    waits = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: waiting(waits) == 1)

    first.drain()
    finished(first)
    [inference] = [each for each in model.wait_for(1) if each.identity.name.endswith("/1/0")]
    again = [run(claim_bulk(store), dependencies=worker()) for _ in range(2)]  # the first shard, too
    for each in again:
        wait_until(lambda each=each: waiting(each) == 1)
    model.answer(inference.id)
    for each in (waits, *again):
        finished(each)

    assert len(model.submitted) == 2, "the drained one's and its follower's"
    assert reused(store, job) == 2


def test_rows_wait_for_no_shard_that_was_given_up(store, model, write_input, run, worker) -> None:
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    claim = claim_bulk(store)
    first = run(claim, dependencies=worker())
    model.wait_for(1)
    waits = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: waiting(waits) == 1)

    first.lease_lost()
    with store.transaction() as tx:
        assert tx.shards.fail_held(claim.lease)
    finished(first)
    [inference] = [each for each in model.wait_for(1) if each.identity.name.endswith("/1/0")]
    model.answer(inference.id)
    finished(waits)


def test_a_row_does_not_wait_for_ever_for_a_shard_that_is_held(
    store, model, write_input, run, worker, monkeypatch
) -> None:
    monkeypatch.setattr(first_results, "WAIT_MAX_S", 0.05)
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    run(claim_bulk(store), dependencies=worker())
    model.wait_for(1)
    impatient = run(claim_bulk(store), dependencies=worker())

    _, own = model.wait_for(2)
    model.answer(own.id)
    finished(impatient)


def test_a_worker_that_has_forgotten_an_answer_finds_it_where_it_is_stored(
    store, objects, model, write_input, run, worker
) -> None:
    model.echo = True
    write_input([batch_line(n, text) for n, text in enumerate(["same", "other", "same"])])
    job = plan_bulk(store, INPUT, shards=2)
    one_row_at_a_time = replace(CONFIG, rows_in_flight_max=1)
    forgetful = worker(known_bytes_max=2 * ENTRY_BYTES - 1)  # has one answer
    for _ in range(2):
        finished(run(claim_bulk(store), one_row_at_a_time, forgetful))

    assert prompts(model) == ["other", "same"]
    assert reused(store, job) == 4


@pytest.mark.parametrize(("row_s", "times"), [(None, 1), (1.0, 1), (1e-9, 2)])
def test_a_result_that_takes_longer_to_read_than_to_compute_is_computed(
    store, objects, model, write_input, run, worker, row_s: float | None, times: int
) -> None:
    model.echo = True
    write_input([batch_line(n, f"text {n}") for n in range(10)])
    job = plan_bulk(store, INPUT, shards=2)
    finished(run(claim_bulk(store), dependencies=worker()))
    finished(run(claim_bulk(store), dependencies=worker(row_seconds=lambda model: row_s)))

    assert len(model.submitted) == 10 * times
    assert reused(store, job) == 20 - 10 * times


def test_a_quick_row_waits_for_one_that_is_running(store, model, write_input, run, worker) -> None:
    """Its shard has not ended: its result is soon in some segment that is small."""
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    first = run(claim_bulk(store), dependencies=worker())
    [inference] = model.wait_for(1)
    second = run(claim_bulk(store), dependencies=worker(row_seconds=lambda model: 1e-9))
    wait_until(lambda: waiting(second) == 1)
    model.answer(inference.id)
    finished(first)
    finished(second)
    assert prompts(model) == ["same"]


def test_the_first_row_itself_runs_though_others_of_its_worker_wait_for_it(
    store, model, write_input, run, worker, places
) -> None:
    """A row is read long before it is admitted, and another shard's row may come in between."""
    write_input([batch_line(0, "slow"), batch_line(1, "same")])
    plan_bulk(store, INPUT, shards=2)
    shared = worker()
    first = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=1), shared)
    [slow] = model.wait_for(1)
    wait_until(lambda: len(places.first) == 2)
    second = run(claim_bulk(store), dependencies=shared)
    wait_until(lambda: waiting(second) == 2)
    assert len(model.submitted) == 1

    model.answer(slow.id)
    [same] = model.wait_for(1)
    assert same.identity.name.endswith("/0/1")
    model.answer(same.id)
    finished(first)
    finished(second)
    assert len(model.submitted) == 2


def test_a_result_of_another_request_is_not_taken(store, model, write_input, run, worker, places) -> None:
    """Redis has a few bytes of a digest; the segment has all of it."""
    model.echo = True
    write_input([batch_line(0, "one")])
    job = plan_bulk(store, INPUT, shards=2)
    finished(run(claim_bulk(store), dependencies=worker()))
    [(_, place)] = places.first.items()
    places.note = lambda job_id, digests, places: [place for _ in digests]
    write_input([batch_line(0, "two")])
    finished(run(claim_bulk(store), dependencies=worker()))

    assert prompts(model) == ["one", "two"]
    assert reused(store, job) == 0


def test_rows_run_after_all_where_the_database_stays_away(
    store, model, write_input, run, worker, monkeypatch
) -> None:
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    run(claim_bulk(store), dependencies=worker())
    model.wait_for(1)

    def away(*args: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(FirstResults, "_read", away)
    second = run(claim_bulk(store), dependencies=worker())
    _, own = model.wait_for(2)
    model.answer(own.id)
    finished(second)


def test_rows_that_are_sent_to_one_place_all_run_but_the_one_it_has(
    store, model, write_input, run, worker, places
) -> None:
    """Wrong content of Redis keeps no row waiting for ever."""
    model.echo = True
    write_input([batch_line(0, "zero")])
    plan_bulk(store, INPUT, shards=2)
    finished(run(claim_bulk(store), dependencies=worker()))
    [(_, place)] = places.first.items()
    places.note = lambda job_id, digests, places: [place for _ in digests]
    write_input([batch_line(n, text) for n, text in enumerate(["one", "zero", "two"])])
    finished(run(claim_bulk(store), dependencies=worker()))

    assert prompts(model) == ["one", "two", "zero"]


@pytest.mark.parametrize("fault", [StorageError("denied"), RuntimeError("unforeseen")])
def test_results_of_one_job_that_cannot_be_read_keep_no_other_job_waiting(
    store, model, write_input, run, worker, monkeypatch, fault: Exception
) -> None:
    write_input([batch_line(0, "same")])
    bad, good = plan_bulk(store, INPUT, shards=2), plan_bulk(store, INPUT, shards=2)
    look_in = FirstResults._look_in

    def failing(self: FirstResults, of, now_s: float) -> None:
        if of.job.id == bad.id:
            raise fault
        look_in(self, of, now_s)

    monkeypatch.setattr(FirstResults, "_look_in", failing)
    claims = [claim_bulk(store) for _ in range(4)]
    first, second = worker(), worker()
    leading = {}
    for claim in claims:
        if claim.job.id not in leading:
            leading[claim.job.id] = run(claim, dependencies=first)
    model.wait_for(2)
    waiting_runs = {
        claim.job.id: run(claim, dependencies=second)
        for claim in claims
        if claim.lease != leading[claim.job.id].claim.lease
    }
    *_, own = model.wait_for(3)
    assert own.group == bad.id, "its row is run"
    wait_until(lambda: waiting(waiting_runs[good.id]) == 1)
    for inference in model.wait_for(3):
        model.answer(inference.id)
    for each in (*leading.values(), *waiting_runs.values()):
        finished(each)
    assert len(model.submitted) == 3


def test_each_segment_of_a_shard_that_grows_is_read_once(
    store, objects, model, write_input, run, worker, monkeypatch
) -> None:
    rows = 20
    write_input([batch_line(n, f"text {n}") for n in range(rows)])
    plan_bulk(store, INPUT, shards=2)
    first = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=1, segment_rows=1), worker())
    model.wait_for(1)
    reads: list[str] = []
    stream = type(objects).stream

    def noting(self, key: str, *args: object, **named: object) -> Iterator[bytes]:
        reads.append(key)
        return stream(self, key, *args, **named)

    monkeypatch.setattr(type(objects), "stream", noting)
    second = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: waiting(second) == rows)
    for number in range(rows):
        [inference] = model.wait_for(1)
        model.answer(inference.id)
        wait_until(lambda number=number: waiting(second) <= rows - 1 - number)  # its segment was read
    finished(first)
    finished(second)
    of_segments = Counter(key for key in reads if key.endswith(".arrow"))
    assert of_segments
    assert max(of_segments.values()) <= 2, "once while its shard grew, and once as it has ended"


def test_a_row_behind_more_than_may_wait_is_not_kept_for_ever(
    store, model, write_input, run, worker, monkeypatch
) -> None:
    """Redis has forgotten which rows were first: two shards wait for each other's last one."""
    monkeypatch.setattr(shard_rows, "WAITING_MAX", 4)
    monkeypatch.setattr(shard_runner, "BLOCKED_S", 0.1)
    model.echo = True
    plan_bulk(store, INPUT, shards=2)
    places = LastRowsAreFirst(last=6)
    claims = [claim_bulk(store), claim_bulk(store)]
    runners = []
    for claim, own, other in zip(claims, "xy", "yx", strict=True):
        dependencies = worker()
        monkeypatch.setattr(dependencies.first_results, "_places", places)
        write_input([batch_line(n, text) for n, text in enumerate(6 * [own] + [other])])
        runners.append(run(claim, dependencies=dependencies))
        wait_until(lambda: places.noted == 7 * len(runners))

    for runner in runners:
        finished(runner)
    assert set(prompts(model)) == {"x", "y"}


def test_rows_run_that_wait_for_other_workers_though_more_wait_for_this_one(
    store, model, write_input, run, worker, monkeypatch
) -> None:
    monkeypatch.setattr(shard_rows, "WAITING_MAX", 12)
    monkeypatch.setattr(shard_runner, "BLOCKED_S", 0.1)
    plan_bulk(store, INPUT, shards=3)
    here, there = worker(), worker()
    write_input([batch_line(0, "here")])
    runners = [run(claim_bulk(store), dependencies=here)]
    model.wait_for(1)
    elsewhere = [batch_line(10 + n, f"there {n}") for n in range(4)]
    write_input(elsewhere)
    runners.append(run(claim_bulk(store), dependencies=there))
    model.wait_for(5)
    write_input([*(batch_line(n, "here") for n in range(8)), *elsewhere, batch_line(20, "own")])
    one = replace(CONFIG, rows_in_flight_max=1)
    runners.append(run(claim_bulk(store), one, here))

    model.wait_for(6)
    assert prompts(model).count("here") == 1
    model.echo = True
    for each in model.wait_for(6):
        model.answer(each.id)
    for runner in runners:
        finished(runner)
    assert 1 < max(Counter(prompts(model)).values()) == 2


@pytest.fixture
def two_of_one_worker(store, model, write_input, run, worker) -> tuple[ShardRunner, ShardRunner]:
    """The second one's row waits for the first one's."""
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    here = worker()
    first = run(claim_bulk(store), dependencies=here)
    model.wait_for(1)
    second = run(claim_bulk(store), dependencies=here)
    wait_until(lambda: waiting(second) == 1)
    return first, second


def test_rows_wait_for_the_one_that_runs_instead_of_the_first(
    store, model, run, worker, places, two_of_one_worker
) -> None:
    """The first one's shard is handed back, and one of the same worker has the request, too."""
    leaves, follows = two_of_one_worker
    leaves.drain()
    finished(leaves)
    wait_until(lambda: [place.shard_no for place in places.first.values()] == [1])
    [same] = model.wait_for(1)

    again = run(claim_bulk(store), dependencies=worker())
    wait_until(lambda: waiting(again) == 1)
    model.answer(same.id)
    for runner in (follows, again):
        finished(runner)
    assert prompts(model) == ["same", "same"]


def test_rows_run_instead_of_the_first_while_redis_is_slow_to_be_told(
    model, places, monkeypatch, two_of_one_worker
) -> None:
    told = threading.Event()
    tell = places.replace
    leaves, follows = two_of_one_worker
    monkeypatch.setattr(places, "replace", lambda *args: (told.wait(), tell(*args)))
    leaves.drain()
    finished(leaves)

    [same] = model.wait_for(1)
    model.answer(same.id)
    finished(follows)
    told.set()
    wait_until(lambda: [place.shard_no for place in places.first.values()] == [1])


class LastRowsAreFirst(Remembered):
    """Of two shards, each of which has the other's requests."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last
        self.noted = 0

    def note(self, job_id: str, digests: Sequence[bytes], places: Sequence[RowPlace]) -> Sequence[RowPlace]:
        self.noted += len(places)
        others = [RowPlace(1 - place.shard_no, self._last) for place in places]
        return super().note(
            job_id,
            digests,
            [
                place if place.row == self._last else other
                for place, other in zip(places, others, strict=True)
            ],
        )


def test_a_shard_that_leaves_waits_no_more(store, model, write_input, run, worker) -> None:
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    run(claim_bulk(store), dependencies=worker())
    model.wait_for(1)
    leaving = worker()
    second = run(claim_bulk(store), dependencies=leaving)
    wait_until(lambda: waiting(second) == 1)

    second.drain()
    finished(second)
    leaving.first_results.look()
    assert not any(each.wanted for each in leaving.first_results._jobs.values())
    assert len(model.submitted) == 1


def test_what_waited_is_closed_after_a_while(store, model, write_input, run, worker) -> None:
    model.echo = True
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=2)
    now_s = [0.0]
    finished(run(claim_bulk(store), dependencies=worker()))
    second = worker(clock=lambda: now_s[0])
    finished(run(claim_bulk(store), dependencies=second))
    assert second.first_results._jobs

    second.first_results.stop()
    second.first_results._thread.join()
    now_s[0] += first_results.HELD_S + 1
    second.first_results.look()
    assert not second.first_results._jobs
