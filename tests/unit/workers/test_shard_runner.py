"""One shard under its lease: every row gets one result, whatever is ordered, refused or lost on the way."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from nightshift import lifecycle
from nightshift.errors import DatabaseUnavailable, StorageUnavailable
from nightshift.files import file_key
from nightshift.jobs import BulkClaim, Job, Shard, ShardState, StopReason, carry_over_key
from nightshift.objectstore import ObjectStore
from nightshift.rows.outputs import RowResult, decode_segment
from nightshift.store import Store, Transaction
from tests.unit.workers.scripted import TENANT, ManualClock, chat_body, claim_bulk, plan_bulk
from workers import endings, shard_runner, uploads
from workers.carry_over import CarryOver, ChoiceSoFar
from workers.heartbeat import Heartbeat
from workers.inference import Progress
from workers.model_server import Inference
from workers.shard_runner import Rooms, ShardConfig, ShardRunner
from workers.uploads import UPLOADS_MAX

INPUT = "file-input"
CONFIG = ShardConfig(
    rows_in_flight_max=8,
    segment_rows=4,
    segment_interval_s=0.05,
    carry_over_interval_s=0,
    flush_s=5,
    stop_grace_s=30,
    line_bytes_max=10_000,
)


def batch_line(number: int, text: str | None = None, **fields: object) -> str:
    line = {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": chat_body(text or f"row {number}"),
    }
    return json.dumps(line | fields)


@pytest.fixture
def write_input(objects: ObjectStore) -> Callable[[Sequence[str]], None]:
    def write(lines: Sequence[str]) -> None:
        objects.put(file_key(TENANT, INPUT), "".join(line + "\n" for line in lines).encode())

    return write


@pytest.fixture
def run(rooms: Rooms, heartbeat: Heartbeat, clock: ManualClock) -> Iterator[Callable[..., ShardRunner]]:
    runners: list[ShardRunner] = []

    def start(claim: BulkClaim, config: ShardConfig = CONFIG, in_rooms: Rooms = rooms) -> ShardRunner:
        runner = ShardRunner(claim, in_rooms, config, on_end=lambda runner: None)
        heartbeat.hold(claim.lease, runner, clock())
        runner.start()
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.lease_lost()
        assert runner.join(10)


def finished(runner: ShardRunner) -> None:
    assert runner.join(10), "the shard did not end"


def shard_of(store: Store, job: Job) -> Shard:
    with store.snapshot() as tx:
        return tx.shards.of_job(job.id, limit=1)[0]


def results_of(store: Store, objects: ObjectStore, job: Job) -> list[RowResult]:
    with store.snapshot() as tx:
        listed = tx.shards.segments_of_job(TENANT, job.id, limit=100)
    return [result for entry in listed for result in decode_segment(objects.read(entry.segment.key))]


def by_id(results: Sequence[RowResult]) -> dict[str, RowResult]:
    assert len({r.custom_id for r in results}) == len(results), "a row has two results"
    return {result.custom_id: result for result in results}


def content(result: RowResult) -> str:
    assert result.body is not None
    return result.body["choices"][0]["message"]["content"]


def test_every_row_is_answered_and_the_shard_is_done(store, objects, model, write_input, run) -> None:
    model.echo = True
    write_input([batch_line(n) for n in range(10)])
    job = plan_bulk(store, INPUT)

    finished(run(claim_bulk(store)))

    results = by_id(results_of(store, objects, job))
    assert {id: content(result) for id, result in results.items()} == {f"r{n}": f"ROW {n}" for n in range(10)}
    shard = shard_of(store, job)
    assert (shard.state, shard.rows_done, shard.rows_total) == (ShardState.DONE, 10, 10)
    with store.snapshot() as tx:
        counted = tx.jobs.fetch(job.id)
    assert (counted.counts.succeeded, counted.counts.failed) == (10, 0)
    assert counted.usage.completion_tokens == 20


def test_bad_rows_get_their_error_and_the_others_run(store, objects, model, write_input, run) -> None:
    model.echo = True
    model.refuses = "too long"
    write_input(
        [
            batch_line(0),
            "{not json",
            batch_line(2, "too long"),
            batch_line(3, body={"model": "demo", "messages": []}),
            batch_line(4, body=chat_body("x") | {"model": "another"}),
            batch_line(5),
        ]
    )
    job = plan_bulk(store, INPUT)

    finished(run(claim_bulk(store)))

    results = {result.row: result for result in results_of(store, objects, job)}
    assert sorted(results) == list(range(6))
    assert [row for row, result in results.items() if result.succeeded] == [0, 5]
    codes = {row: results[row].body["error"]["code"] for row in (1, 2, 3, 4)}
    assert codes[2] == "context_length_exceeded"
    assert codes[4] == "mismatched_model"
    assert results[3].body["error"]["param"] == "messages"
    assert shard_of(store, job).state is ShardState.DONE


def test_a_row_the_engine_fails_on_thrice_is_a_failed_row_and_nothing_more(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0), batch_line(1)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    first, second = model.wait_for(2)

    model.answer(second.id)
    for _ in range(3):
        (failing,) = model.wait_for(1)
        assert failing.identity == first.identity
        model.fail(failing.id, "the logits are not finite")
    finished(runner)

    results = by_id(results_of(store, objects, job))
    assert results["r0"].status_code == 500
    assert results["r1"].succeeded


def test_rows_tell_the_engine_their_job(store, model, write_input, run) -> None:
    write_input([batch_line(number) for number in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    inferences = model.wait_for(2)
    for inference in inferences:
        model.answer(inference.id)
    finished(runner)

    assert [inference.group for inference in inferences] == [job.id, job.id]


def test_no_more_rows_are_in_flight_than_allowed(store, model, write_input, run) -> None:
    write_input([batch_line(n) for n in range(20)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=3))

    submitted = 0
    while submitted < 20:
        running = model.wait_for(min(3, 20 - submitted))
        assert len(running) <= 3
        for inference in running:
            model.answer(inference.id)
        submitted += len(running)
    finished(runner)


def test_the_next_worker_runs_only_what_no_listed_segment_has(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(6)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store), replace(CONFIG, segment_rows=2))
    for inference in model.wait_for(6)[:4]:
        model.answer(inference.id)
    _wait_until(lambda: shard_of(store, job).rows_done == 4)
    first.lease_lost()
    finished(first)
    with store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        tx.leases.requeue(expired)

    model.running.clear()
    model.submitted.clear()
    model.echo = True
    finished(run(claim_bulk(store, "worker-2")))

    assert len(model.submitted) == 2, "two rows were left"
    assert len(by_id(results_of(store, objects, job))) == 6
    assert shard_of(store, job).state is ShardState.DONE


def test_a_row_has_the_same_identity_and_seed_at_every_attempt(store, model, write_input, run) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (before,) = model.wait_for(1)
    first.drain()
    finished(first)

    run(claim_bulk(store, "worker-2"))
    (after,) = model.wait_for(1)

    assert before.id != after.id, "the engine must be able to tell the attempts apart"
    assert before.identity == after.identity
    assert before.identity.seed == after.identity.seed


def test_draining_saves_tokens_so_far_and_the_next_worker_continues_from_them(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    done, half, untouched = model.wait_for(3)
    model.answer(done.id)
    model.say(half.id, "RO", [7, 8])
    model.say(half.id, "W", [9])

    runner.drain()
    finished(runner)

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 1)
    assert set(model.cancelled) == {half.id, untouched.id}

    model.submitted.clear()
    run(claim_bulk(store, "worker-2"))
    continued = {inference.identity.name: inference.carry_over for inference in model.wait_for(2)}
    assert continued[half.identity.name] == CarryOver([ChoiceSoFar([7, 8, 9])], model.made_by)
    assert continued[untouched.identity.name] is None


def test_a_row_of_several_choices_is_carried_over_choice_by_choice(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0, body=chat_body("row", n=3))])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    listener = inference.listener
    listener(Progress("a", [1, 2], choice=2))
    listener(Progress("b", [3], choice=0))
    listener(Progress("c", [4], choice=2))

    runner.drain()
    finished(runner)
    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)

    choices = [ChoiceSoFar([3]), ChoiceSoFar(), ChoiceSoFar([1, 2, 4])]
    assert continued.carry_over == CarryOver(choices, model.made_by)


def test_a_carry_over_of_an_earlier_version_is_still_read(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    key = carry_over_key(claim.lease, claim.shard.shard_no, 0)
    objects.put(key, b'{"row": 0, "output_token_ids": [5, 6]}\n')
    with store.transaction() as tx:
        assert tx.leases.hand_back(claim.lease, key)

    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)

    assert continued.carry_over == CarryOver([ChoiceSoFar([5, 6])])


def test_a_stopped_job_starts_nothing_more_and_keeps_what_finishes_in_time(
    store, objects, model, write_input, run, heartbeat
) -> None:
    write_input([batch_line(n) for n in range(20)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=2))
    running = model.wait_for(2)
    with store.transaction() as tx:
        lifecycle.request_stop(tx, job, StopReason.CANCELLED, tx.now())
    heartbeat.beat()
    for inference in running:
        model.answer(inference.id)
    finished(runner)

    assert len(model.submitted) == 2
    assert len(results_of(store, objects, job)) == 2
    assert shard_of(store, job).state is ShardState.STOPPED


def test_rows_that_outlast_the_grace_period_are_given_up(store, model, write_input, run) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, stop_grace_s=0.01))
    (stuck,) = model.wait_for(1)

    runner.stop_requested(StopReason.EXPIRED)
    finished(runner)

    assert model.cancelled == [stuck.id]
    assert shard_of(store, job).state is ShardState.STOPPED


def test_a_worker_that_does_not_trust_its_lease_writes_only_once_it_does_again(
    store, objects, model, write_input, run, clock, heartbeat
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    clock.advance(21)  # nothing renewed the lease

    model.answer(inference.id)
    assert not runner.join(0.2)
    assert results_of(store, objects, job) == []
    heartbeat.beat()
    finished(runner)

    assert len(results_of(store, objects, job)) == 1


def test_a_worker_that_lost_its_lease_writes_nothing(store, objects, model, write_input, run, clock) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    clock.advance(21)

    model.answer(inference.id)
    runner.lease_lost()
    finished(runner)

    assert results_of(store, objects, job) == []
    assert shard_of(store, job).state is ShardState.LEASED, "recovery will find it"


def test_the_database_refuses_a_segment_under_an_old_term(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    with store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        tx.leases.requeue(expired)
    second = claim_bulk(store, "worker-2")

    model.answer(inference.id)  # the first worker still trusts itself
    finished(runner)

    assert results_of(store, objects, job) == []
    shard = shard_of(store, job)
    assert (shard.state, shard.term) == (ShardState.LEASED, second.lease.term)


def test_a_busy_model_is_offered_the_row_again(store, model, write_input, run) -> None:
    model.is_busy, model.echo = True, True
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    model.is_busy = False
    finished(runner)

    assert shard_of(store, job).state is ShardState.DONE


def test_a_shard_whose_storage_is_away_waits_and_is_not_lost(store, rooms, model, write_input, run) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)

    class Away:
        def __getattr__(self, name: str) -> object:
            raise StorageUnavailable

    finished(
        _started(
            ShardRunner(claim_bulk(store), replace(rooms, sources=Away()), CONFIG, on_end=lambda r: None)
        )
    )

    assert shard_of(store, job).state is ShardState.QUEUED
    with store.transaction() as tx:
        assert tx.leases.claim_bulk("worker-2", ["demo"], tx.now(), 30) is None, "not before a while"


@pytest.mark.parametrize(
    "spoil",
    [lambda objects, key: objects.put(key, b"{}"), lambda objects, key: objects.delete(key)],
    ids=["damaged", "gone"],
)
def test_a_shard_whose_listed_results_are_lost_is_given_up_and_waits_for_nobody(
    store, objects, model, write_input, run, spoil
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store), replace(CONFIG, segment_rows=1))
    model.answer(model.wait_for(2)[0].id)
    _wait_until(lambda: shard_of(store, job).rows_done == 1)
    first.drain()
    finished(first)
    with store.snapshot() as tx:
        (segment,) = tx.shards.segments(shard_of(store, job).id)
    spoil(objects, segment.key)

    finished(run(claim_bulk(store)))

    assert shard_of(store, job).state is ShardState.FAILED


def test_rows_under_way_are_saved_without_notice_and_go_on_after_a_sudden_death(
    store, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.02))
    half, untouched = model.wait_for(2)
    model.say(half.id, "RO", [7, 8])
    first = saved_after(store, job, None)
    model.say(half.id, "W", [9])
    saved_after(store, job, first)
    died(store, runner)

    model.submitted.clear()
    run(claim_bulk(store, "worker-2"))
    continued = {inference.identity.name: inference.carry_over for inference in model.wait_for(2)}
    assert continued[half.identity.name] == CarryOver([ChoiceSoFar([7, 8, 9])], model.made_by)
    assert continued[untouched.identity.name] is None


def test_rows_without_new_tokens_are_not_saved_again(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.01))
    (half,) = model.wait_for(1)
    model.say(half.id, "RO", [7, 8])
    key = saved_after(store, job, None)
    assert not runner.join(0.2)

    assert shard_of(store, job).carry_over_key == key


def test_only_the_last_carry_over_is_kept_and_none_of_a_shard_that_is_done(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.01))
    (row,) = model.wait_for(1)
    key = None
    for token in range(3):
        model.say(row.id, "x", [token])
        key = saved_after(store, job, key)
        _wait_until(lambda key=key: carry_overs(objects) == [key])
    model.answer(row.id)
    finished(runner)

    assert carry_overs(objects) == []


def test_a_row_that_is_drained_twice_before_it_says_anything_keeps_its_tokens(
    store, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (row,) = model.wait_for(1)
    model.say(row.id, "RO", [7, 8])
    first.drain()
    finished(first)
    second = run(claim_bulk(store, "worker-2"))
    model.wait_for(1)
    second.drain()
    finished(second)

    run(claim_bulk(store, "worker-3"))
    (continued,) = model.wait_for(1)

    assert continued.carry_over == CarryOver([ChoiceSoFar([7, 8])], model.made_by)


def test_a_row_not_begun_yet_keeps_the_tokens_it_has_when_others_are_saved(
    store, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    for row, tokens in zip(model.wait_for(2), ([1], [2, 3]), strict=True):
        model.say(row.id, "x", tokens)
    first.drain()
    finished(first)
    saved = shard_of(store, job).carry_over_key
    second = run(
        claim_bulk(store, "worker-2"), replace(CONFIG, rows_in_flight_max=1, carry_over_interval_s=0.01)
    )
    (begun,) = model.wait_for(1)
    model.say(begun.id, "x", [1, 4])
    saved_after(store, job, saved)
    died(store, second)

    run(claim_bulk(store, "worker-3"))

    left = [inference.carry_over for inference in model.wait_for(2)]
    assert left == [CarryOver([ChoiceSoFar(tokens)], model.made_by) for tokens in ([1, 4], [2, 3])]


def test_tokens_that_the_engine_does_not_go_on_from_are_counted(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (row,) = model.wait_for(1)
    model.say(row.id, "RO", [7, 8])
    first.drain()
    finished(first)

    second = run(claim_bulk(store, "worker-2"))
    (row,) = model.wait_for(1)
    model.say(row.id, "R", [5])  # an engine that goes on repeats 7, 8 first
    model.answer(row.id)
    finished(second)

    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).tokens_redone == 2
        assert tx.counters.values()["tokens_redone"] == 2


def test_a_database_that_is_away_for_a_while_costs_nothing_that_is_finished(
    store, objects, model, write_input, run, rooms, at_once
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    away = Away(store)
    runner = run(claim, in_rooms=replace(rooms, store=away))
    rows = model.wait_for(3)
    away.is_away = True
    for row in rows:
        model.answer(row.id)
    for _ in range(2):
        assert away.refused.acquire(timeout=10)
    stored = [found.key for found in objects.list("segments")]
    away.is_away = False
    finished(runner)

    assert len(model.submitted) == 3, "no row is run again"
    assert len(by_id(results_of(store, objects, job))) == 3
    assert shard_of(store, job).state is ShardState.DONE
    assert [found.key for found in objects.list("segments")] == stored, "nothing is stored twice"


def test_a_listing_whose_answer_was_lost_is_not_counted_twice(
    store, objects, model, write_input, run, rooms, at_once
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    away = Away(store)
    runner = run(claim_bulk(store), in_rooms=replace(rooms, store=away))
    (row,) = model.wait_for(1)
    away.loses_answers = 1
    model.answer(row.id)
    finished(runner)

    assert away.refused.acquire(timeout=0)
    assert len(results_of(store, objects, job)) == 1
    shard = shard_of(store, job)
    assert (shard.state, shard.rows_done) == (ShardState.DONE, 1)
    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).counts.succeeded == 1


def test_an_object_store_that_is_away_for_a_while_costs_nothing_that_is_finished(
    store, objects, model, write_input, run, rooms, at_once
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    away = AwayObjects(objects)
    runner = run(claim, in_rooms=replace(rooms, objects=away))
    rows = model.wait_for(3)
    away.is_away = True
    for row in rows:
        model.answer(row.id)
    for _ in range(2):
        assert away.refused.acquire(timeout=10)
    away.is_away = False
    finished(runner)

    assert len(model.submitted) == 3
    assert len(by_id(results_of(store, objects, job))) == 3
    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.DONE, 1, 0)


def test_a_slow_object_store_stops_the_rows_only_after_some_checkpoints(
    store, objects, model, write_input, run, rooms
) -> None:
    model.echo = True
    write_input([batch_line(n) for n in range(40)])
    job = plan_bulk(store, INPUT)
    slow = SlowObjects(objects)
    config = replace(CONFIG, segment_rows=2, rows_in_flight_max=4)
    runner = run(claim_bulk(store), config, in_rooms=replace(rooms, objects=slow))
    assert slow.asked.acquire(timeout=10)
    _wait_until(lambda: len(model.submitted) >= 2 * UPLOADS_MAX)
    assert not runner.join(0.1)
    assert len(model.submitted) <= 2 * UPLOADS_MAX + config.rows_in_flight_max
    slow.answers.set()
    finished(runner)

    assert len(by_id(results_of(store, objects, job))) == 40


def test_whoever_drains_while_the_object_store_hangs_does_not_wait_for_it(
    store, objects, model, write_input, run, rooms
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    slow = SlowObjects(objects)
    runner = run(claim_bulk(store), replace(CONFIG, flush_s=0.05), in_rooms=replace(rooms, objects=slow))
    (row,) = model.wait_for(1)
    model.say(row.id, "RO", [7, 8])
    runner.drain()
    finished(runner)
    slow.answers.set()

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.carry_over_key) == (ShardState.QUEUED, 0, None)
    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).tokens_redone == 2


def test_a_shard_that_breaks_is_given_back_at_once_with_what_is_finished(
    store, objects, model, write_input, run, monkeypatch
) -> None:
    write_input([batch_line(0), batch_line(1)])
    job = plan_bulk(store, INPUT)
    broken = iter([False, True])
    monkeypatch.setattr(model, "submit", _breaking(model.submit, broken))

    finished(run(claim_bulk(store)))

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.QUEUED, 1, 0)
    with store.transaction() as tx:
        assert list(tx.leases.of_worker("worker-1", 10)) == []


def test_a_shard_that_always_breaks_is_given_up(store, model, write_input, run, monkeypatch) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    monkeypatch.setattr(model, "submit", _breaking(model.submit, itertools.repeat(True)))
    monkeypatch.setattr(endings, "retry_delay_s", lambda faults, key: 0.0)

    for _ in range(endings.BROKEN_MAX):
        finished(run(claim_bulk(store)))

    assert shard_of(store, job).state is ShardState.FAILED


def saved_after(store: Store, job: Job, key: str | None) -> str | None:
    """Wait until the job's only shard has another carry-over than this one. Returns its key."""
    _wait_until(lambda: shard_of(store, job).carry_over_key != key)
    return shard_of(store, job).carry_over_key


def carry_overs(objects: ObjectStore) -> list[str]:
    return [found.key for found in objects.list("segments") if "-c" in found.key]


def died(store: Store, runner: ShardRunner) -> None:
    """The worker is gone from one moment to the next, and somebody has noticed."""
    runner.lease_lost()
    finished(runner)
    with store.transaction() as tx:
        for lost in tx.leases.of_worker(runner.claim.lease.worker_id, 10):
            tx.leases.requeue(lost)


def _breaking(submit: Callable[[Inference], None], when: Iterator[bool]) -> Callable[[Inference], None]:
    def broken(inference: Inference) -> None:
        if next(when):
            raise RuntimeError("nobody foresaw this")
        submit(inference)

    return broken


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has to wait before trying again does not wait long."""
    monkeypatch.setattr(uploads, "LISTING_RETRY_S", 0.01)
    for module in (uploads, shard_runner):
        monkeypatch.setattr(module, "retry_delay_s", lambda faults, key: 0.01)


class Away(Store):
    """A store whose database can be taken away, or can lose the answers to commits that it made."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.is_away = False
        self.loses_answers = 0
        self.refused = threading.Semaphore(0)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        if self.is_away:
            self._refuse()
        with super().transaction() as tx:
            yield tx
        if self.loses_answers:
            self.loses_answers -= 1
            self._refuse()

    def _refuse(self) -> None:
        self.refused.release()
        raise DatabaseUnavailable


class AwayObjects:
    """An object store that can be taken away."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.is_away = False
        self.refused = threading.Semaphore(0)

    def __getattr__(self, name: str) -> object:
        if self.is_away:
            self.refused.release()
            raise StorageUnavailable
        return getattr(self._objects, name)


class SlowObjects:
    """An object store in which a put does not end before it is told to."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self.asked.release()
        assert self.answers.wait(30)
        self._objects.put(key, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)


def _started(runner: ShardRunner) -> ShardRunner:
    runner.start()
    return runner


def _wait_until(condition: Callable[[], bool]) -> None:
    """Poll what another thread commits to the database: there is no signal to wait on across it."""
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true")
