"""Interruptions of a bulk job are among its events, and an orderly course is not."""

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Interruption, Job
from nightshift.lifecycle import recovery
from nightshift.lifecycle.transitions import SHARD_LOST, SHARD_RESUMED, SHARD_RETURNED
from nightshift.store import Store
from nightshift.store.jobs.events import Event
from tests.helpers.fakes import claimed, commit_rows, completed, planned
from workers.shard.endings import Endings

ALL = 1000
INTERRUPTIONS = (SHARD_LOST, SHARD_RETURNED, SHARD_RESUMED)


def interruptions(store: Store, job: Job) -> list[Event]:
    with store.snapshot() as tx:
        events = tx.events.after(job.tenant_id, job.id, 0, ALL)
        assert [event.type for event in tx.events.milestones(job.tenant_id, job.id, ALL)][1:] == [
            event.type for event in events if event.type in INTERRUPTIONS
        ]
    return [event for event in events if event.type in INTERRUPTIONS]


def test_a_worker_that_is_killed_and_one_that_goes_on_are_events(store: Store) -> None:
    job = planned(store)
    lease = claimed(store, "worker_a").lease
    commit_rows(store, lease, rows=4)
    with store.transaction() as tx:
        recovery.release_worker(tx, "worker_a", 20, tx.now(), ExitCause.KILLED)
    resumed_by = claimed(store, "worker_b")
    assert resumed_by.took_over == Interruption(lease.term, "worker_a", "killed")

    lost, resumed = interruptions(store, job)

    assert (lost.type, lost.data) == (
        "job.shard_lost",
        {"shard": 0, "worker_id": "worker_a", "cause": "killed"},
    )
    assert (resumed.type, resumed.data) == (
        "job.shard_resumed",
        {"shard": 0, "worker_id": "worker_b", "rows_done": 4},
    )


def test_a_shard_that_its_worker_hands_back_is_an_event(store: Store) -> None:
    job = planned(store)
    Endings(claimed(store, "worker_a"), store).hand_back(tokens_lost=0)

    (returned,) = interruptions(store, job)

    assert (returned.type, returned.data) == (
        "job.shard_returned",
        {"shard": 0, "worker_id": "worker_a", "cause": "handed_back"},
    )


def test_a_claim_says_of_the_lease_before_it_alone_how_that_ended(store: Store) -> None:
    job = planned(store, shards=2)
    first, other = claimed(store, "worker_a"), claimed(store, "worker_a")
    assert (first.took_over, other.took_over) == (None, None)

    Endings(first, store).hand_back(tokens_lost=0)
    again = claimed(store, "worker_b")
    assert again.took_over == Interruption(first.lease.term, "worker_a", "handed_back")

    with store.transaction() as tx:  # it ends in a way that is not recorded
        assert tx.leases.return_broken(again.lease, tx.now())
    assert claimed(store, "worker_c").took_over is None
    with store.snapshot() as tx:
        [untouched] = [shard for shard in tx.shards.of_job(job.id, limit=2) if shard.shard_no == 1]
    assert untouched.term == other.lease.term


def test_a_lease_that_was_lost_before_hands_nothing_back(store: Store) -> None:
    job = planned(store)
    late = claimed(store, "worker_a")
    with store.transaction() as tx:
        recovery.release_worker(tx, "worker_a", 20, tx.now(), ExitCause.KILLED)

    assert not Endings(late, store).hand_back(tokens_lost=0)

    assert [event.type for event in interruptions(store, job)] == ["job.shard_lost"]


def test_a_job_that_nothing_interrupts_has_no_such_event(store: Store) -> None:
    job = planned(store, shards=3)
    for _ in range(3):
        lease = claimed(store, "worker_a").lease
        commit_rows(store, lease, rows=4)
        assert completed(store, lease, rows_total=4)

    assert interruptions(store, job) == []
