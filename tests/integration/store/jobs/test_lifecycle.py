"""Whole transactions: what becomes true at once when a job is submitted, planned, answered."""

from datetime import timedelta

from nightshift.jobs import Counts, InputError, JobKind, JobState, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import (
    STARTS_AT,
    FakeClock,
    a_shard,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import (
    events,
    fetch,
    owed,
    request_stop,
    rings_waiting,
    shard_states,
    with_webhook,
)

# -- submit and plan -----------------------------------------------------------------------------------


def test_a_submitted_bulk_job_waits_for_the_scheduler(store: Store) -> None:
    job = submit(store)

    assert job.state is JobState.QUEUED
    assert job.planned_at is None
    assert job.deadline_at == STARTS_AT + timedelta(days=1)
    assert events(store, job) == ["job.queued"]
    assert rings_waiting(store) == []
    with store.snapshot() as tx:
        assert [waiting.id for waiting in tx.jobs.to_plan(limit=10)] == [job.id]


def test_a_submitted_online_request_can_be_claimed_and_its_ring_is_owed(store: Store) -> None:
    submitted = submit_online(store, priority=PriorityClass.STANDARD)

    [ring] = rings_waiting(store)
    assert (ring,) == submitted.rings
    assert (ring.kind, ring.shard_id, ring.priority_rank) == (JobKind.ONLINE, submitted.shard_id, 1)
    assert claimed_online(store, submitted.shard_id).job.id == submitted.job.id


def test_a_planned_job_can_be_claimed_and_wakes_as_many_workers_as_it_has_shards(store: Store) -> None:
    job = submit(store, priority=PriorityClass.BACKGROUND)

    with store.transaction() as tx:
        cut = [a_shard(number, rows_estimated=10) for number in range(3)]
        rings = transitions.plan(tx, job, "demo", cut, tx.now(), rows_estimated=30)

    assert rings is not None
    assert [(ring.kind, ring.shard_id, ring.priority_rank) for ring in rings] == [(JobKind.BULK, None, 2)] * 3
    assert rings_waiting(store) == list(rings)
    assert events(store, job) == ["job.queued", "job.planned"]
    assert fetch(store, job).rows_estimated == 30
    assert fetch(store, job).counts.total is None
    assert claimed(store).job.id == job.id


def test_a_large_job_rings_a_bounded_number_of_times(store: Store) -> None:
    planned(store, shards=1200)  # more than one INSERT statement holds

    assert len(rings_waiting(store)) == transitions.BULK_RINGS_MAX
    with store.snapshot() as tx:
        assert tx.shards.queued() == {JobKind.BULK: 1200}


def test_a_job_is_planned_once(store: Store) -> None:
    job = planned(store, shards=2)

    with store.transaction() as tx:
        assert transitions.plan(tx, job, "demo", [a_shard(7)], tx.now()) is None

    assert len(shard_states(store, job)) == 2


def test_a_job_that_was_stopped_meanwhile_is_not_planned(store: Store) -> None:
    job = submit(store)
    request_stop(store, job)

    with store.transaction() as tx:
        assert transitions.plan(tx, job, "demo", [a_shard()], tx.now()) is None

    assert shard_states(store, job) == []


# -- rows ----------------------------------------------------------------------------------------------


def test_the_rows_of_segments_add_up_to_the_job(store: Store) -> None:
    job = planned(store, shards=2, rows_total=12)
    first, second = claimed(store).lease, claimed(store).lease

    assert commit_rows(store, first, seq=0, rows=4, failed=1)
    assert commit_rows(store, second, seq=0, rows=5)
    assert commit_rows(store, first, seq=1, rows=3)

    counted = fetch(store, job)
    assert counted.counts == Counts(total=12, succeeded=11, failed=1)
    assert counted.usage == Usage(prompt_tokens=120, completion_tokens=60, cached_tokens=12)
    assert events(store, job)[2:] == ["job.running", *["job.progress"] * 3]


# -- online answers ------------------------------------------------------------------------------------


def test_an_answer_ends_its_job(store: Store, clock: FakeClock) -> None:
    request = submit_online(store, **with_webhook())
    claim = claimed_online(store, request.shard_id)
    clock.advance(seconds=2)

    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(usage=Usage(7, 3, 2)), tx.now())

    ended = fetch(store, request.job)
    assert ended.state is JobState.SUCCEEDED
    assert ended.finished_at == clock.now
    assert ended.counts == Counts(1, 1, 0)
    assert ended.usage == Usage(7, 3, 2)
    assert ended.errors == ()
    assert events(store, ended) == ["job.queued", "job.succeeded"]
    assert [delivery.event_type for delivery in owed(store, ended)] == ["job.succeeded"]


def test_an_error_for_an_answer_fails_its_job_and_says_why(store: Store) -> None:
    request = submit_online(store)
    claim = claimed_online(store, request.shard_id)

    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(400), tx.now())

    ended = fetch(store, request.job)
    assert ended.state is JobState.FAILED
    assert ended.counts == Counts(1, 0, 1)
    assert ended.errors == (InputError("invalid_value", "The prompt is too long."),)


@both_databases
def test_a_request_is_answered_once(store: Store) -> None:
    request = submit_online(store)
    claim = claimed_online(store, request.shard_id)

    def answer(name: str) -> bool:
        with store.transaction() as tx:
            return transitions.record_answer(tx, claim, an_answer(body={"choices": [name]}), tx.now())

    recorded = at_once(lambda: answer("a"), lambda: answer("b"))

    assert sorted(recorded) == [False, True]
    with store.snapshot() as tx:
        kept = tx.shards.online_result("default", request.job.id)
        assert kept is not None
        assert kept.body == {"choices": ["ab"[recorded.index(True)]]}
