"""A shard under its lease: orders, refusals and outages lose nothing that is finished."""

import gzip
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from nightshift.errors import CredentialsRefused, DatabaseUnavailable, StorageError, StorageUnavailable
from nightshift.jobs import CrashHistory, Job, ShardState, StopReason
from nightshift.jobs.files import file_key
from nightshift.lifecycle import transitions
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store, Transaction
from tests.unit.workers.scripted import TENANT, chat_body, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import (
    AT_ONCE,
    CONFIG,
    INPUT,
    TOLD_AT_ONCE,
    batch_line,
    by_id,
    finished,
    results_of,
    shard_of,
    wait_until,
)
from workers.serving.model_server import Inference
from workers.shard import endings
from workers.shard.config import UPLOADS_MAX
from workers.shard.runner import ShardRunner

READING = "The input cannot be read at present"
OURS = "the service's own store"
FAILS = "cannot be reached or is failing"


def fault_of(store: Store, job: Job) -> str | None:
    """What the shard's owner is told that it waits for."""
    fault = shard_of(store, job).fault
    return None if fault is None else fault.error.message


def test_a_stopped_job_starts_nothing_more_and_keeps_what_finishes_in_time(
    store, objects, model, write_input, run, heartbeat
) -> None:
    write_input([batch_line(n) for n in range(20)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=2))
    running = model.wait_for(2)
    with store.transaction() as tx:
        transitions.request_stop(tx, job, StopReason.CANCELLED, tx.now())
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


ENDLESS = 10**12  # tokens, at any speed more than the grace period has


def long_line(number: int, tokens_max: int) -> str:
    return batch_line(number, body=chat_body(f"row {number}") | {"max_tokens": tokens_max})


def generate(model, inference: Inference) -> None:
    """The row has a speed."""
    for token in range(2):
        model.emit(inference.id, "x", [token])


def test_a_stop_does_not_wait_for_rows_that_will_not_end_in_time(store, model, write_input, run) -> None:
    write_input([long_line(number, ENDLESS) for number in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, stop_grace_s=3600))
    first, second = model.wait_for(2)
    generate(model, first)  # the other waits in the engine

    runner.stop_requested(StopReason.CANCELLED)
    finished(runner)

    assert set(model.cancelled) == {first.id, second.id}
    assert shard_of(store, job).state is ShardState.STOPPED


def test_a_stop_waits_for_a_row_that_may_end_in_time_and_only_for_it(
    store, objects, model, write_input, run
) -> None:
    write_input([long_line(0, ENDLESS), long_line(1, 3)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, stop_grace_s=3600))
    late, soon = model.wait_for(2)
    for inference in (late, soon):
        generate(model, inference)

    runner.stop_requested(StopReason.CANCELLED)
    wait_until(lambda: model.cancelled == [late.id])
    model.answer(soon.id)
    finished(runner)

    assert list(by_id(results_of(store, objects, job))) == ["r1"]


def test_rows_before_the_unreadable_end_of_an_input_are_written(store, objects, model, run) -> None:
    model.echo = True
    packed = gzip.compress("".join(f"{batch_line(number)}\n" for number in range(200)).encode(), 0)
    objects.put(file_key(TENANT, INPUT), packed[: len(packed) // 2])
    job = plan_bulk(store, INPUT, packed="jsonl.gz")

    finished(run(claim_bulk(store), replace(CONFIG, segment_rows=1000, segment_interval_s=3600)))

    assert shard_of(store, job).state is ShardState.FAILED
    assert len(results_of(store, objects, job)) > 50


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


def test_a_shard_that_its_own_worker_claims_again_is_run_once_not_twice(
    store, objects, model, write_input, run, clock, heartbeat
) -> None:
    """Its lease ran out by the database's clock, which jumped, and not by the worker's."""
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    before = run(claim_bulk(store))
    model.wait_for(1)
    with store.transaction() as tx:
        [expired] = tx.leases.of_worker("worker-1", 10)
        assert tx.leases.requeue(expired)

    after = run(claim_bulk(store))
    finished(before)
    [inference] = model.wait_for(1)
    model.answer(inference.id)
    finished(after)

    assert shard_of(store, job).state is ShardState.DONE
    assert len(results_of(store, objects, job)) == 1


@pytest.mark.parametrize("how", ["lease lost", "drained"])
def test_cancelled_rows_count_as_inside_until_the_engine_has_taken_them_out(
    store, model, write_input, run, dependencies, how: str
) -> None:
    """In a step that hangs they stay: the next suspect would be taken to have hung alone."""
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    model.wait_for(1)
    model.is_stuck = True
    if how == "drained":
        runner.drain()
    else:
        runner.lease_lost()
    finished(runner)

    suspect = object()
    assert not dependencies.isolation.enter_alone(suspect)
    model.step_ends()
    assert dependencies.isolation.enter_alone(suspect)


def test_a_shard_of_suspects_keeps_no_other_out_while_its_uploads_are_full(
    store, objects, model, write_input, run, dependencies
) -> None:
    model.echo = True
    rows = 4 * UPLOADS_MAX
    write_input([batch_line(n) for n in range(rows)])
    plan_bulk(store, INPUT)
    history = CrashHistory(crashes=2, suspects=tuple(range(rows)))
    slow = SlowObjects(objects)
    run(
        replace(claim_bulk(store), crash_history=history),
        replace(CONFIG, segment_rows=1),
        dependencies=replace(dependencies, objects=slow),
    )
    assert slow.asked.acquire(timeout=30)

    other = object()
    wait_until(lambda: dependencies.isolation.enter(other))
    assert len(model.submitted) < rows, "it waits for its uploads"
    dependencies.isolation.leave(other)
    slow.answers.set()


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


def test_a_shard_whose_storage_is_away_waits_and_is_not_lost(
    store, dependencies, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)

    class Away:
        def __getattr__(self, name: str) -> object:
            raise StorageUnavailable

    finished(
        started(
            ShardRunner(
                claim_bulk(store), replace(dependencies, sources=Away()), CONFIG, on_end=lambda r: None
            )
        )
    )

    shard = shard_of(store, job)
    assert (shard.state, fault_of(store, job)) == (ShardState.QUEUED, f"{READING}: {OURS} {FAILS}")
    with store.transaction() as tx:
        assert tx.claims.bulk("worker-2", ["demo"], tx.now(), 30) is None, "not before a while"


@pytest.mark.parametrize("error", [CredentialsRefused("ExpiredToken"), StorageUnavailable("SlowDown")])
def test_rows_whose_images_cannot_be_read_wait_and_their_shard_says_why(
    store, objects, model, write_input, run, error: StorageError
) -> None:
    """As for its input. What has ended stays, and the next lease has told of it once it has read one."""
    write_input([batch_line(n) for n in range(4)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    good, *others = model.wait_for(4)
    model.answer(good.id)
    for each in others:
        model.miss_file(each.id, error)
    finished(runner)

    expected = f"An image cannot be read at present: {error.message}"
    assert (shard_of(store, job).state, fault_of(store, job)) == (ShardState.QUEUED, expected)
    with store.transaction() as tx:
        assert tx.claims.bulk("worker-1", ["demo"], tx.now(), 30) is None, "not before a while"
        claim = tx.claims.bulk("worker-1", ["demo"], tx.now() + timedelta(hours=1), 30)
    assert claim is not None

    later = run(claim)
    first, *others = model.wait_for(3)
    assert fault_of(store, job) == expected, "its input is read, and none of its images yet"
    model.answer(first.id)
    wait_until(lambda: fault_of(store, job) is None)
    for each in others:
        model.answer(each.id)
    finished(later)
    assert {row.succeeded for row in by_id(results_of(store, objects, job)).values()} == {True}
    assert len(results_of(store, objects, job)) == 4


@pytest.mark.parametrize(
    "spoil",
    [lambda objects, key: objects.put(key, b"{}"), lambda objects, key: objects.delete(key)],
    ids=["damaged", "gone"],
)
def test_a_shard_whose_listed_results_are_lost_fails(store, objects, model, write_input, run, spoil) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store), replace(CONFIG, segment_rows=1))
    model.answer(model.wait_for(2)[0].id)
    wait_until(lambda: shard_of(store, job).rows_done == 1)
    first.drain()
    finished(first)
    with store.snapshot() as tx:
        (segment,) = tx.shards.segments(shard_of(store, job).id)
    spoil(objects, segment.key)

    finished(run(claim_bulk(store)))

    assert shard_of(store, job).state is ShardState.FAILED


def test_a_database_that_is_away_for_a_while_costs_nothing_that_is_finished(
    store, objects, model, write_input, run, dependencies
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    away = Away(store)
    runner = run(claim, AT_ONCE, dependencies=replace(dependencies, store=away))
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
    store, objects, model, write_input, run, dependencies
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    away = Away(store)
    runner = run(claim_bulk(store), AT_ONCE, dependencies=replace(dependencies, store=away))
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
    store, objects, model, write_input, run, dependencies
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    away = AwayObjects(objects)
    runner = run(claim, AT_ONCE, dependencies=replace(dependencies, objects=away))
    rows = model.wait_for(3)
    away.is_away = True
    for row in rows:
        model.answer(row.id)
    for _ in range(2):
        assert away.refused.acquire(timeout=10)
    assert fault_of(store, job) == f"Results cannot be kept at present: {OURS} {FAILS}"
    away.is_away = False
    finished(runner)

    assert fault_of(store, job) is None
    assert len(model.submitted) == 3
    assert len(by_id(results_of(store, objects, job))) == 3
    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.DONE, 1, 0)


def test_a_slow_object_store_stops_the_rows_only_after_some_checkpoints(
    store, objects, model, write_input, run, dependencies
) -> None:
    model.echo = True
    write_input([batch_line(n) for n in range(40)])
    job = plan_bulk(store, INPUT)
    slow = SlowObjects(objects)
    config = replace(CONFIG, segment_rows=2, rows_in_flight_max=4)
    runner = run(claim_bulk(store), config, dependencies=replace(dependencies, objects=slow))
    assert slow.asked.acquire(timeout=10)
    wait_until(lambda: len(model.submitted) >= 2 * UPLOADS_MAX)
    assert not runner.join(0.1)
    assert len(model.submitted) <= 2 * UPLOADS_MAX + config.rows_in_flight_max
    slow.answers.set()
    finished(runner)

    assert len(by_id(results_of(store, objects, job))) == 40


def test_an_object_store_that_hangs_is_told_of_until_it_answers(
    store, objects, model, write_input, run, dependencies
) -> None:
    model.echo = True
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    slow = SlowObjects(objects)
    runner = run(claim_bulk(store), TOLD_AT_ONCE, dependencies=replace(dependencies, objects=slow))
    wait_until(lambda: fault_of(store, job) == f"Results cannot be kept at present: {OURS} {FAILS}")
    slow.answers.set()
    finished(runner)

    assert fault_of(store, job) is None


def test_an_input_whose_store_hangs_is_told_of_until_it_answers(
    store, objects, model, write_input, run, dependencies
) -> None:
    model.echo = True
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    answers = threading.Event()

    class Hanging:
        """A store whose objects come when they are to."""

        def __getattr__(self, name: str) -> object:
            return getattr(objects, name)

        def stream(self, *args: object, **options: object) -> Iterator[bytes]:
            assert answers.wait(30)
            yield from objects.stream(*args, **options)

    sources = Sources(Hanging(), Locations())
    runner = run(claim_bulk(store), TOLD_AT_ONCE, dependencies=replace(dependencies, sources=sources))
    wait_until(lambda: fault_of(store, job) == f"{READING}: {OURS} {FAILS}")
    answers.set()
    finished(runner)

    assert fault_of(store, job) is None
    assert shard_of(store, job).state is ShardState.DONE


def test_a_drain_does_not_wait_for_an_object_store_that_hangs(
    store, objects, model, write_input, run, dependencies
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    slow = SlowObjects(objects)
    runner = run(
        claim_bulk(store), replace(CONFIG, flush_s=0.05), dependencies=replace(dependencies, objects=slow)
    )
    (row,) = model.wait_for(1)
    model.emit(row.id, "RO", [7, 8])
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
    monkeypatch.setattr(model, "submit", breaking(model.submit, broken))

    finished(run(claim_bulk(store)))

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.QUEUED, 1, 0)
    with store.transaction() as tx:
        assert list(tx.leases.of_worker("worker-1", 10)) == []


def test_a_shard_that_always_breaks_fails(store, model, write_input, run, monkeypatch) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    monkeypatch.setattr(model, "submit", breaking(model.submit, itertools.repeat(True)))
    config = replace(CONFIG, fault_delay_s=lambda faults, key: 0.0)

    for _ in range(endings.BROKEN_MAX):
        finished(run(claim_bulk(store), config))

    assert shard_of(store, job).state is ShardState.FAILED


def breaking(submit: Callable[[Inference], None], when: Iterator[bool]) -> Callable[[Inference], None]:
    def broken(inference: Inference) -> None:
        if next(when):
            raise RuntimeError("unforeseen")
        submit(inference)

    return broken


class Away(Store):
    """A store whose database can be taken away, or can lose the answers to commits that it made."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.is_away = False
        self.loses_answers = 0
        self.refused = threading.Semaphore(0)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
        if self.is_away:
            self._refuse()
        with super().transaction(durable=durable) as tx:
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


def started(runner: ShardRunner) -> ShardRunner:
    runner.start()
    return runner
