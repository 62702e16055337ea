"""One shard under its lease: every row gets one result, whatever is ordered, refused or lost on the way."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from nightshift import lifecycle
from nightshift.errors import StorageUnavailable
from nightshift.files import file_key
from nightshift.jobs import BulkClaim, Job, Shard, ShardState, StopReason, carry_over_key
from nightshift.objectstore import ObjectStore
from nightshift.rows.outputs import RowResult, decode_segment
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, chat_body, claim_bulk, plan_bulk
from workers.carry_over import CarryOver, ChoiceSoFar
from workers.heartbeat import Heartbeat
from workers.inference import Progress
from workers.shard_runner import Rooms, ShardConfig, ShardRunner

INPUT = "file-input"
CONFIG = ShardConfig(
    rows_in_flight_max=8, segment_rows=4, segment_interval_s=0.05, stop_grace_s=30, line_bytes_max=10_000
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

    def start(claim: BulkClaim, config: ShardConfig = CONFIG) -> ShardRunner:
        runner = ShardRunner(claim, rooms, config, on_end=lambda runner: None)
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


def test_a_row_the_engine_fails_on_is_a_failed_row_and_nothing_more(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0), batch_line(1)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    first, second = model.wait_for(2)

    model.fail(first.id, "the logits are not finite")
    model.answer(second.id)
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


def test_a_worker_that_lost_its_lease_writes_nothing(store, objects, model, write_input, run, clock) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    clock.advance(21)  # nothing renewed the lease: it is not trusted any more

    model.answer(inference.id)
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
