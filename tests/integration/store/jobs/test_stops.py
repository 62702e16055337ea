"""Whole transactions: what becomes true at once when a job is told to stop, whatever it was doing."""

from collections.abc import Callable

import pytest

from nightshift.jobs import Counts, Job, JobState, ShardState, StopReason
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import (
    FakeClock,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    completed,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.watching import (
    events,
    fetch,
    finalizing,
    finish,
    owed,
    request_stop,
    shard_states,
    with_webhook,
)


def queued_and_unplanned(store: Store) -> Job:
    return submit(store)


def queued_and_planned(store: Store) -> Job:
    return planned(store, shards=2)


def running(store: Store) -> Job:
    job = planned(store, shards=2)
    claimed(store)
    return job


@pytest.mark.parametrize(
    ("given", "shards_then"),
    [
        (queued_and_unplanned, []),
        (queued_and_planned, [ShardState.STOPPED, ShardState.STOPPED]),
        (running, [ShardState.LEASED, ShardState.STOPPED]),
    ],
)
@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_ends_unclaimed_shards(
    store: Store,
    clock: FakeClock,
    given: Callable[[Store], Job],
    shards_then: list[ShardState],
    reason: StopReason,
) -> None:
    job = given(store)
    state_before = fetch(store, job).state

    assert request_stop(store, job, reason) is True

    stopping = fetch(store, job)
    assert stopping.state is state_before  # assembly ends it, with what it has
    assert (stopping.stop_reason, stopping.stop_requested_at) == (reason, clock.now)
    assert shard_states(store, job) == shards_then
    assert events(store, job)[-1] == "job.stopping"
    with store.snapshot() as tx:
        waits_for_a_worker = ShardState.LEASED in shards_then
        assert [waiting.id for waiting in tx.jobs.to_finalize(10)] == ([] if waits_for_a_worker else [job.id])


def test_a_job_is_to_be_assembled_when_its_last_shard_has_ended(store: Store) -> None:
    job = planned(store, shards=2)
    first, second = claimed(store).lease, claimed(store).lease
    commit_rows(store, first, rows=4)
    assert completed(store, first, rows_total=4)
    request_stop(store, job)

    with store.transaction() as tx:
        assert tx.jobs.to_finalize(10) == []
        assert tx.shards.stop_held(second)
        assert [waiting.id for waiting in tx.jobs.to_finalize(10)] == [job.id]
        assert tx.jobs.fetch(job.id).counts.succeeded == 4


def test_the_first_reason_to_stop_stays(store: Store) -> None:
    job = planned(store)

    assert request_stop(store, job, StopReason.EXPIRED) is True
    assert request_stop(store, job, StopReason.CANCELLED) is False

    assert fetch(store, job).stop_reason is StopReason.EXPIRED
    assert events(store, job).count("job.stopping") == 1


@pytest.mark.parametrize("state", [None, *(state for state in JobState if state.is_terminal)])
def test_a_job_that_is_assembled_or_has_ended_cannot_be_stopped(store: Store, state: JobState | None) -> None:
    job = finalizing(store)
    if state is not None:
        finish(store, job, state)
    before = fetch(store, job)

    assert request_stop(store, job) is False
    assert fetch(store, job) == before


@pytest.mark.parametrize("reason", StopReason)
def test_an_unclaimed_online_request_ends_with_the_stop(store: Store, reason: StopReason) -> None:
    request = submit_online(store, **with_webhook())

    assert request_stop(store, request.job, reason)

    ended = fetch(store, request.job)
    assert ended.state is reason.final_state
    assert ended.counts == Counts(1, 0, 1)
    assert events(store, ended) == ["job.queued", "job.stopping", f"job.{reason}"]
    assert len(owed(store, ended)) == 1


def test_an_online_request_that_is_running_ends_when_its_worker_obeys(store: Store) -> None:
    request = submit_online(store)
    lease = claimed_online(store, request.shard_id).lease
    request_stop(store, request.job)
    assert fetch(store, request.job).state is JobState.RUNNING

    with store.transaction() as tx:
        assert tx.shards.stop_held(lease)
        assert transitions.end_stopped_online(tx, tx.jobs.fetch(request.job.id), tx.now())

    assert fetch(store, request.job).state is JobState.CANCELLED
    assert events(store, request.job) == ["job.queued", "job.stopping", "job.cancelled"]


def test_an_answer_that_was_ready_before_the_stop_arrived_counts(store: Store) -> None:
    request = submit_online(store)
    claim = claimed_online(store, request.shard_id)
    request_stop(store, request.job)

    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(), tx.now())

    assert fetch(store, request.job).state is JobState.SUCCEEDED
