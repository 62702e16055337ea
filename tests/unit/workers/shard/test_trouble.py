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
from nightshift.jobs import CrashHistory, ShardState, StopReason
from nightshift.jobs.files import file_key
from nightshift.lifecycle import transitions
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store, Transaction
from tests.unit.workers.scripted import TENANT, ScriptedServer, chat_body, claim_bulk
from tests.unit.workers.shard.helpers import (
    AT_ONCE,
    CONFIG,
    INPUT,
    TOLD_AT_ONCE,
    Ground,
    batch_line,
    finished,
    wait_until,
)
from workers.serving.model_server import Inference
from workers.shard.config import UPLOADS_MAX
from workers.shard.endings import BROKEN_MAX

READING = "The input cannot be read at present: the service's own store cannot be reached or is failing"
KEEPING = "Results cannot be kept at present: the service's own store cannot be reached or is failing"


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
    """An object store in which a put or a stream does not end before it is told to."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.requested = threading.Semaphore(0)
        self.answers = threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self._wait()
        self._objects.put(key, data)

    def stream(self, *args: object, **options: object) -> Iterator[bytes]:
        self._wait()
        yield from self._objects.stream(*args, **options)

    def _wait(self) -> None:
        self.requested.release()
        assert self.answers.wait(30)

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)


def generate(model: ScriptedServer, *inferences: Inference) -> None:
    """The rows have a speed."""
    for inference, token in itertools.product(inferences, range(2)):
        model.emit(inference.id, "x", [token])


def requeued(ground: Ground) -> None:
    """The lease has run out by the database's clock."""
    with ground.store.transaction() as tx:
        [expired] = tx.leases.of_worker("worker-1", 10)
        assert tx.leases.requeue(expired)


# -- orders


def test_a_stopped_job_starts_nothing_more_and_keeps_what_finishes_in_time(ground: Ground) -> None:
    runner = ground.run(20, replace(CONFIG, rows_in_flight_max=2))
    inferences = ground.begun(2)
    with ground.store.transaction() as tx:
        transitions.request_stop(tx, ground.recorded, StopReason.CANCELLED, tx.now())
    ground.heartbeat.beat()
    ground.answer(*inferences)
    finished(runner)

    assert (len(ground.model.submitted), len(ground.results)) == (2, 2)
    assert ground.state is ShardState.STOPPED


def test_rows_that_outlast_the_grace_period_are_given_up(ground: Ground) -> None:
    runner = ground.run(1, replace(CONFIG, stop_grace_s=0.01))
    (stuck,) = ground.begun(1)
    runner.stop_requested(StopReason.EXPIRED)
    finished(runner)

    assert ground.model.cancelled == [stuck.id]
    assert ground.state is ShardState.STOPPED


@pytest.mark.parametrize("other_ends", [False, True])
def test_a_stop_waits_only_for_rows_that_may_end_in_time(ground: Ground, other_ends: bool) -> None:
    tokens_max = (10**12, 3 if other_ends else 10**12)  # the first at any speed exceeds the grace period
    bodies = [chat_body(f"row {number}") | {"max_tokens": limit} for number, limit in enumerate(tokens_max)]
    lines = [batch_line(number, body=body) for number, body in enumerate(bodies)]
    runner = ground.run(lines, replace(CONFIG, stop_grace_s=3600))
    late, other = ground.begun(2)
    generate(ground.model, *(late, other) if other_ends else (late,))  # else the other waits in the engine

    runner.stop_requested(StopReason.CANCELLED)
    if other_ends:
        wait_until(lambda: ground.model.cancelled == [late.id])
        ground.answer(other)
    finished(runner)

    assert set(ground.model.cancelled) == ({late.id} if other_ends else {late.id, other.id})
    assert [*ground.by_id] == (["r1"] if other_ends else [])
    assert ground.state is ShardState.STOPPED


def test_a_drain_does_not_wait_for_an_object_store_that_hangs(ground: Ground) -> None:
    slow = SlowObjects(ground.objects)
    runner = ground.run(1, replace(CONFIG, flush_s=0.05), objects=slow)
    (row,) = ground.begun(1)
    ground.model.emit(row.id, "RO", [7, 8])
    ground.drain(runner)
    slow.answers.set()

    shard = ground.shard
    assert (shard.state, shard.attempts, shard.carry_over_key) == (ShardState.QUEUED, 0, None)
    assert ground.recorded.tokens_redone == 2


# -- leases


def test_a_worker_that_does_not_trust_its_lease_writes_only_once_it_does_again(ground: Ground) -> None:
    runner = ground.run(1, AT_ONCE)
    (inference,) = ground.begun(1)
    ground.clock.advance(21)  # nothing renewed the lease
    ground.answer(inference)
    assert not runner.join(0.2)
    assert ground.results == []
    ground.heartbeat.beat()
    finished(runner)

    assert len(ground.results) == 1


def test_a_worker_that_lost_its_lease_writes_nothing(ground: Ground) -> None:
    runner = ground.run(1)
    (inference,) = ground.begun(1)
    ground.clock.advance(21)
    ground.answer(inference)
    runner.lease_lost()
    finished(runner)

    assert ground.results == []
    assert ground.state is ShardState.LEASED, "recovery will find it"


def test_a_shard_that_its_own_worker_claims_again_is_run_once_not_twice(ground: Ground) -> None:
    """Its lease ran out by the database's clock, which jumped, and not by the worker's."""
    before = ground.run(1)
    ground.begun(1)
    requeued(ground)
    after = ground.lease()
    finished(before)
    ground.answer(*ground.begun(1))
    finished(after)

    assert ground.state is ShardState.DONE
    assert len(ground.results) == 1


def test_the_database_refuses_a_segment_under_an_old_term(ground: Ground) -> None:
    runner = ground.run(1)
    (inference,) = ground.begun(1)
    requeued(ground)
    second = claim_bulk(ground.store, "worker-2")
    ground.answer(inference)  # the first worker still trusts itself
    finished(runner)

    assert ground.results == []
    assert (ground.state, ground.shard.term) == (ShardState.LEASED, second.lease.term)


@pytest.mark.parametrize("how", ["lease lost", "drained"])
def test_cancelled_rows_count_as_inside_until_the_engine_has_taken_them_out(ground: Ground, how: str) -> None:
    """Rows stay in a step that hangs: the next suspect would be taken to have hung alone."""
    runner = ground.run(1)
    ground.begun(1)
    ground.model.is_stuck = True
    if how == "drained":
        runner.drain()
    else:
        runner.lease_lost()
    finished(runner)

    suspect, isolation = object(), ground.dependencies.isolation
    assert not isolation.enter_alone(suspect)
    ground.model.step_ends()
    assert isolation.enter_alone(suspect)


def test_a_shard_of_suspects_keeps_no_other_out_while_its_uploads_are_full(ground: Ground) -> None:
    ground.model.echo = True
    rows, slow = 4 * UPLOADS_MAX, SlowObjects(ground.objects)
    ground.plan(rows)
    history = CrashHistory(crashes=2, suspects=tuple(range(rows)))
    claim = replace(claim_bulk(ground.store), crash_history=history)
    ground.lease(replace(CONFIG, segment_rows=1), claim=claim, objects=slow)
    assert slow.requested.acquire(timeout=30)

    other, isolation = object(), ground.dependencies.isolation
    wait_until(lambda: isolation.enter(other))
    assert len(ground.model.submitted) < rows, "it waits for its uploads"
    isolation.leave(other)
    slow.answers.set()


# -- stores


def test_rows_before_the_unreadable_end_of_an_input_are_written(ground: Ground) -> None:
    ground.model.echo = True
    ground.plan(0, packed="jsonl.gz")
    packed = gzip.compress("".join(f"{batch_line(number)}\n" for number in range(200)).encode(), 0)
    ground.objects.put(file_key(TENANT, INPUT), packed[: len(packed) // 2])
    finished(ground.lease(replace(CONFIG, segment_rows=1000, segment_interval_s=3600)))

    assert ground.state is ShardState.FAILED
    assert len(ground.results) > 50


def test_a_shard_whose_storage_is_away_waits_and_is_not_lost(ground: Ground) -> None:
    away = AwayObjects(ground.objects)
    away.is_away = True
    finished(ground.run(1, sources=away))

    assert (ground.state, ground.fault) == (ShardState.QUEUED, READING)
    with ground.store.transaction() as tx:
        assert tx.claims.bulk("worker-2", ["demo"], tx.now(), 30) is None, "not before a while"


@pytest.mark.parametrize("error", [CredentialsRefused("ExpiredToken"), StorageUnavailable("SlowDown")])
def test_rows_whose_images_cannot_be_read_wait_and_their_shard_says_why(
    ground: Ground, error: StorageError
) -> None:
    """As for its input. What has ended stays, and the next lease has told of it once it has read one."""
    runner = ground.run(4)
    good, *others = ground.begun(4)
    ground.answer(good)
    for inference in others:
        ground.model.miss_file(inference.id, error)
    finished(runner)

    expected = f"An image cannot be read at present: {error.message}"
    assert (ground.state, ground.fault) == (ShardState.QUEUED, expected)
    with ground.store.transaction() as tx:
        assert tx.claims.bulk("worker-1", ["demo"], tx.now(), 30) is None, "not before a while"
        claim = tx.claims.bulk("worker-1", ["demo"], tx.now() + timedelta(hours=1), 30)
    later = ground.lease(claim=claim)
    first, *others = ground.begun(3)
    assert ground.fault == expected, "its input is read, and none of its images yet"
    ground.answer(first)
    wait_until(lambda: ground.fault is None)
    ground.answer(*others)
    finished(later)

    assert [result.succeeded for result in ground.by_id.values()] == [True] * 4


@pytest.mark.parametrize(
    "spoil",
    [lambda objects, key: objects.put(key, b"{}"), lambda objects, key: objects.delete(key)],
    ids=["damaged", "gone"],
)
def test_a_shard_whose_listed_results_are_lost_fails(
    ground: Ground, spoil: Callable[[ObjectStore, str], None]
) -> None:
    first = ground.run(2, replace(CONFIG, segment_rows=1))
    ground.answer(ground.begun(2)[0])
    wait_until(lambda: ground.shard.rows_done == 1)
    ground.drain(first)
    with ground.store.snapshot() as tx:
        (segment,) = tx.shards.segments(ground.shard.id)
    spoil(ground.objects, segment.key)
    finished(ground.lease())

    assert ground.state is ShardState.FAILED


@pytest.mark.parametrize("part", ["store", "objects"])
def test_a_store_that_is_away_for_a_while_costs_nothing_that_is_finished(ground: Ground, part: str) -> None:
    away = Away(ground.store) if part == "store" else AwayObjects(ground.objects)
    runner = ground.run(3, AT_ONCE, **{part: away})
    rows = ground.begun(3)
    away.is_away = True
    ground.answer(*rows)
    for _ in range(2):
        assert away.refused.acquire(timeout=10)
    assert ground.fault == (KEEPING if part == "objects" else None)
    stored = [info.key for info in ground.objects.list("segments")]
    away.is_away = False
    finished(runner)

    assert ground.fault is None
    assert len(ground.model.submitted) == 3, "no row is run again"
    assert len(ground.by_id) == 3
    shard = ground.shard
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.DONE, 1, 0)
    if part == "store":
        assert [info.key for info in ground.objects.list("segments")] == stored, "nothing is stored twice"


def test_a_listing_whose_answer_was_lost_is_not_counted_twice(ground: Ground) -> None:
    away = Away(ground.store)
    runner = ground.run(1, AT_ONCE, store=away)
    (row,) = ground.begun(1)
    away.loses_answers = 1
    ground.answer(row)
    finished(runner)

    assert away.refused.acquire(timeout=0)
    assert len(ground.results) == 1
    assert (ground.state, ground.shard.rows_done) == (ShardState.DONE, 1)
    assert ground.recorded.counts.succeeded == 1


def test_a_slow_object_store_stops_the_rows_only_after_some_checkpoints(ground: Ground) -> None:
    ground.model.echo = True
    slow, submitted = SlowObjects(ground.objects), ground.model.submitted
    config = replace(CONFIG, segment_rows=2, rows_in_flight_max=4)
    runner = ground.run(40, config, objects=slow)
    assert slow.requested.acquire(timeout=10)
    wait_until(lambda: len(submitted) >= 2 * UPLOADS_MAX)
    assert not runner.join(0.1)
    assert len(submitted) <= 2 * UPLOADS_MAX + config.rows_in_flight_max
    slow.answers.set()
    finished(runner)

    assert len(ground.by_id) == 40


@pytest.mark.parametrize("message", [KEEPING, READING], ids=["results", "input"])
def test_a_store_that_hangs_is_told_of_until_it_answers(ground: Ground, message: str) -> None:
    ground.model.echo = True
    slow = SlowObjects(ground.objects)
    parts = {"objects": slow} if message == KEEPING else {"sources": Sources(slow, Locations())}
    runner = ground.run(1, TOLD_AT_ONCE, **parts)
    wait_until(lambda: ground.fault == message)
    slow.answers.set()
    finished(runner)

    assert ground.fault is None
    assert ground.state is ShardState.DONE


# -- bugs


def breaking(model: ScriptedServer, when: Iterator[bool]) -> None:
    submit = model.submit

    def broken(inference: Inference) -> None:
        if next(when):
            raise RuntimeError("unforeseen")
        submit(inference)

    model.submit = broken  # type: ignore[method-assign]


def test_a_shard_that_breaks_is_given_back_at_once_with_what_is_finished(ground: Ground) -> None:
    breaking(ground.model, iter([False, True]))
    finished(ground.run(2))

    shard = ground.shard
    assert (shard.state, shard.attempts, shard.faults) == (ShardState.QUEUED, 1, 0)
    with ground.store.transaction() as tx:
        assert list(tx.leases.of_worker("worker-1", 10)) == []


def test_a_shard_that_always_breaks_fails(ground: Ground) -> None:
    breaking(ground.model, itertools.repeat(True))
    ground.plan(1)
    for _ in range(BROKEN_MAX):
        finished(ground.lease(replace(CONFIG, fault_delay_s=lambda faults, key: 0.0)))

    assert ground.state is ShardState.FAILED
