"""Changes by an owner of a job that has not ended, and when they are too late."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from nightshift.errors import Conflict
from nightshift.fleet.workers import Machine
from nightshift.jobs import Counts, Job, JobKind, JobState, ShardState, StopReason
from nightshift.jobs.priorities import ROOM_FOR_ALL, PriorityClass, PriorityConfig
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import controls, transitions
from nightshift.lifecycle.controls import JobChanges
from nightshift.store import Store, Transaction
from tests.helpers.fakes import (
    MODEL,
    STARTS_AT,
    TTL_S,
    FakeClock,
    a_shard,
    a_spec,
    claim,
    claimed,
    commit_rows,
    completed,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.watching import fetch

SOON = JobChanges(priority=PriorityClass.INTERACTIVE)


def change(store: Store, job: Job, changes: JobChanges = SOON) -> tuple[Ring, ...]:
    with store.transaction() as tx:
        return controls.change(tx, job, changes, tx.now())


def test_a_better_class_is_claimed_first_from_then_on(store: Store, clock: FakeClock) -> None:
    planned(store)
    clock.advance(seconds=1)
    later = planned(store)

    change(store, later)

    with store.snapshot() as tx:
        *_, event = tx.events.after("default", later.id, 0, 10)
    assert claimed(store).job.id == later.id
    assert (event.type, event.data) == ("job.updated", {"priority": "interactive"})


def test_a_waiting_request_is_rung_for_under_its_new_class(store: Store) -> None:
    request = submit_online(store, priority=PriorityClass.BACKGROUND)

    [ring] = change(store, request.job)

    assert (ring.kind, ring.shard_id, ring.priority_rank) == (JobKind.ONLINE, request.shard_id, 0)
    assert change(store, request.job) == ()  # it has that class


def test_metadata_is_replaced_whole_and_what_is_not_named_stays(store: Store) -> None:
    spec = a_spec(metadata={"a": "1", "b": "2"}, name="n")
    job = submit(store, spec=spec)

    change(store, job, JobChanges(metadata={"c": "3"}, sets_metadata=True))
    assert fetch(store, job).spec == replace(spec, metadata={"c": "3"})
    assert fetch(store, job).priority is job.priority

    change(store, job)
    assert fetch(store, job).spec.metadata == {"c": "3"}


def stopped(tx: Transaction, job: Job) -> None:
    transitions.request_stop(tx, job, StopReason.CANCELLED, tx.now())


def finalizing(tx: Transaction, job: Job) -> None:
    tx.jobs.mark_finalizing(job.id, tx.now())


def ended(tx: Transaction, job: Job) -> None:
    transitions.finish(tx, job, JobState.FAILED, tx.now(), counts=Counts(0))


def pause(store: Store, job: Job) -> None:
    with store.transaction() as tx:
        controls.pause(tx, job, tx.now())


def resume(store: Store, job: Job) -> tuple[Ring, ...]:
    with store.transaction() as tx:
        return controls.resume(tx, job, tx.now())


def test_a_paused_job_is_not_claimed_and_a_resumed_one_is_rung_for(store: Store, clock: FakeClock) -> None:
    job = planned(store, shards=3)
    lease = claimed(store).lease
    pause(store, job)

    assert claim(store) is None
    with store.transaction() as tx:
        [held] = tx.leases.renew([lease], tx.now(), TTL_S)
        assert (held.is_paused, held.stop_reason) == (True, None)
        assert tx.leases.hand_back(lease)
        clock.advance(minutes=1)
        assert tx.shards.unrung(tx.now(), timedelta(seconds=10), kind=JobKind.BULK, limit=10) == []
        assert tx.shards.queued() == {}  # no more workers are wanted for it
        assert tx.load.bulk_pace().running_since is None

    assert [ring.kind for ring in resume(store, job)] == [JobKind.BULK] * 3
    assert claimed(store).lease.shard_id == lease.shard_id


def test_a_shard_that_was_chosen_before_its_job_was_paused_is_not_taken(store: Store) -> None:
    job = planned(store)
    with store.transaction() as tx:
        [chosen] = tx.claims._best_jobs([MODEL], tx.now(), PriorityConfig(), Machine(), ROOM_FOR_ALL)
    pause(store, job)

    with store.transaction() as tx:
        assert tx.claims._take_next_shard(chosen, "worker", tx.now(), TTL_S) is None


def test_a_repeat_changes_nothing_and_is_no_event(store: Store, clock: FakeClock) -> None:
    job = planned(store)
    pause(store, job)
    paused_at = fetch(store, job).paused_at
    clock.advance(seconds=1)
    pause(store, job)
    assert fetch(store, job).paused_at == paused_at == STARTS_AT

    resume(store, job)
    assert resume(store, job) == ()
    with store.snapshot() as tx:
        types = [event.type for event in tx.events.after("default", job.id, 0, 10)]
    assert types == ["job.queued", "job.planned", "job.paused", "job.resumed"]


def test_a_job_of_one_request_is_not_paused(store: Store) -> None:
    with pytest.raises(Conflict, match="one request"):
        pause(store, submit_online(store).job)


def test_a_paused_job_is_planned_and_expires_at_its_deadline(store: Store, clock: FakeClock) -> None:
    job = submit(store, spec=a_spec(completion_window_s=60))
    pause(store, job)
    with store.transaction() as tx:
        assert [waiting.id for waiting in tx.jobs.to_plan(limit=10)] == [job.id]
        assert transitions.plan(tx, job, MODEL, [a_shard()], tx.now())
    clock.advance(seconds=60)

    with store.transaction() as tx:
        [overdue] = tx.jobs.overdue(tx.now(), 10)
        assert transitions.request_stop(tx, overdue, StopReason.EXPIRED, tx.now())
        assert tx.shards.states(job.id) == {ShardState.STOPPED: 1}
    assert fetch(store, job).paused_at is None


def test_a_job_whose_last_shard_ended_as_it_was_paused_is_finalized(store: Store) -> None:
    job = planned(store)
    lease = claimed(store).lease
    pause(store, job)
    commit_rows(store, lease, rows=4)
    assert completed(store, lease, rows_total=4)

    with store.transaction() as tx:
        assert [waiting.id for waiting in tx.jobs.to_finalize(limit=10)] == [job.id]
        assert tx.jobs.mark_finalizing(job.id, tx.now())
    assert fetch(store, job).paused_at is None


TOO_LATE: dict[str, Callable[[Transaction, Job], None]] = {
    "that is stopping": stopped,
    "with status 'finalizing'": finalizing,
    "with status 'failed'": ended,
}


ORDERS: dict[str, Callable[[Store, Job], object]] = {
    "change a job's priority": change,
    "change a job's metadata": lambda store, job: change(store, job, JobChanges(sets_metadata=True)),
    "pause": pause,
    "resume": resume,
}


@pytest.mark.parametrize("why", TOO_LATE)
@pytest.mark.parametrize("order", ORDERS)
def test_a_job_that_ends_is_not_changed_any_more(store: Store, why: str, order: str) -> None:
    job = planned(store, spec=a_spec(metadata={"a": "1"}))
    with store.transaction() as tx:
        TOO_LATE[why](tx, job)
    before = fetch(store, job)

    with pytest.raises(Conflict, match=f"Cannot {order.partition(' ')[0]} .*{why}"):
        ORDERS[order](store, job)

    assert fetch(store, job) == before
