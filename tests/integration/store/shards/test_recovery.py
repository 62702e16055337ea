"""Shards that come back: handed back, delayed, or taken from a worker that is gone."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import CrashHistory, JobKind, Shard, ShardState, StopReason
from nightshift.jobs.leases import Lease
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store, tables
from nightshift.store.shards.leases import ExpiredLease
from tests.helpers.fakes import (
    FakeClock,
    a_spec,
    claimed,
    commit_rows,
    planned,
    rescue,
    submit_online,
)

RING_AFTER = timedelta(seconds=10)


def shard_of(store: Store, lease: Lease) -> Shard:
    with store.snapshot() as tx:
        [same] = [shard for shard in tx.shards.of_job(lease.job_id, limit=100) if shard.id == lease.shard_id]
        return same


def expired(store: Store, *, limit: int = 10) -> list[ExpiredLease]:
    with store.snapshot() as tx:
        return list(tx.leases.expired(tx.now(), limit))


def unrung(store: Store, kind: JobKind = JobKind.BULK) -> list[str]:
    with store.snapshot() as tx:
        return [shard_id for shard_id, _ in tx.shards.unrung(tx.now(), RING_AFTER, kind=kind, limit=10)]


def mark_signalled(store: Store, *shard_ids: str) -> None:
    with store.transaction() as tx:
        tx.shards.mark_signalled(shard_ids, tx.now())


def test_a_shard_handed_back_costs_no_attempt(store: Store) -> None:
    planned(store)
    for _ in range(3):
        lease = claimed(store).lease
        with store.transaction() as tx:
            assert tx.leases.hand_back(lease)

    shard = claimed(store).shard
    assert (shard.attempts, shard.term) == (1, 4)


def test_a_shard_handed_back_keeps_its_rows_and_where_the_rest_of_them_is(store: Store) -> None:
    planned(store)
    lease = claimed(store).lease
    commit_rows(store, lease, rows=4)
    with store.transaction() as tx:
        assert tx.leases.hand_back(lease, "segments/default/carry-over")

    claim = claimed(store, "worker_2")

    assert claim.shard.rows_done == 4
    assert claim.shard.carry_over_key == "segments/default/carry-over"


def test_a_shard_handed_back_can_be_claimed_and_rung_at_once(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store).lease
    mark_signalled(store, lease.shard_id)
    clock.advance(seconds=10)
    mark_signalled(store, lease.shard_id)
    with store.transaction() as tx:
        tx.leases.hand_back(lease)

    assert unrung(store) == [lease.shard_id]
    assert claimed(store, "worker_2").lease.shard_id == lease.shard_id


def test_a_delayed_shard_is_not_charged_and_not_rung_before_its_time(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store).lease
    clock.advance(seconds=60)
    with store.transaction() as tx:
        assert tx.leases.delay(lease, clock.now + timedelta(seconds=8))

    delayed = shard_of(store, lease)
    assert (delayed.attempts, delayed.faults) == (0, 1)
    assert unrung(store) == []
    clock.advance(seconds=8)
    assert unrung(store) == [lease.shard_id]


def test_a_shard_that_broke_is_charged_an_attempt_and_no_crash(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store).lease
    with store.transaction() as tx:
        assert tx.leases.return_broken(lease, clock.now + timedelta(seconds=1))
    clock.advance(seconds=1)

    lost = lost_with_its_worker(store, clock)

    assert (lost.attempts, lost.crash_count) == (2, 0)


def test_a_renewal_tells_how_many_tokens_a_sudden_death_would_cost(store: Store, clock: FakeClock) -> None:
    planned(store, shards=2)
    first, second = claimed(store).lease, claimed(store).lease
    with store.transaction() as tx:
        tx.leases.renew([first, second], clock.now, 30, {first.shard_id: 70})
        told = {held.shard_id: held.tokens_in_flight for held in tx.leases.of_worker("worker_1", 10)}

    assert told == {first.shard_id: 70, second.shard_id: 0}


def test_a_lease_runs_out_at_its_time_and_not_before(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store, "worker_9", ttl_s=30).lease

    clock.advance(seconds=29)
    assert expired(store) == []
    clock.advance(seconds=1)
    [lost] = expired(store)
    assert (lost.shard_id, lost.job_id, lost.tenant_id) == (lease.shard_id, lease.job_id, "default")
    assert (lost.kind, lost.term, lost.worker_id) == (JobKind.BULK, lease.term, "worker_9")
    assert (lost.attempts, lost.stop_reason, lost.retry_on_interrupt) == (1, None, True)


def test_a_lost_lease_says_whether_its_job_is_to_go_on(store: Store, clock: FakeClock) -> None:
    job = planned(store, spec=a_spec(retry_on_interrupt=False))
    claimed(store)
    with store.transaction() as tx:
        assert tx.jobs.stop(job.id, StopReason.EXPIRED, tx.now())
    clock.advance(seconds=30)

    [lost] = expired(store)
    assert (lost.retry_on_interrupt, lost.stop_reason) == (False, StopReason.EXPIRED)


def test_the_longest_gone_are_found_first_and_no_more_than_asked_for(store: Store, clock: FakeClock) -> None:
    planned(store, shards=3)
    leases = [claimed(store, ttl_s=ttl_s).lease for ttl_s in (30, 10, 20)]
    clock.advance(seconds=60)

    order = [leases[1].shard_id, leases[2].shard_id, leases[0].shard_id]
    assert [lost.shard_id for lost in expired(store)] == order
    assert [lost.shard_id for lost in expired(store, limit=2)] == order[:2]


def test_a_requeued_shard_is_charged_the_attempt_and_goes_to_another_worker(
    store: Store, clock: FakeClock
) -> None:
    planned(store)
    lease = claimed(store, "worker_1").lease
    commit_rows(store, lease, rows=4)
    clock.advance(seconds=30)

    assert rescue(store) == 1
    assert unrung(store) == [lease.shard_id]
    claim = claimed(store, "worker_2")
    assert (claim.lease.shard_id, claim.lease.term) == (lease.shard_id, 2)
    assert (claim.shard.attempts, claim.shard.rows_done) == (2, 4)


def test_a_lease_that_was_taken_over_is_not_taken_back(store: Store, clock: FakeClock) -> None:
    """Two schedulers saw the same expired lease; the second acts after a new worker has claimed the shard."""
    planned(store)
    claimed(store)
    clock.advance(seconds=30)
    [lost] = expired(store)
    rescue(store)
    new = claimed(store, "worker_2").lease

    with store.transaction() as tx:
        assert tx.leases.requeue(lost) is False
        assert tx.leases.end(lost, ShardState.FAILED) is False
        assert len(tx.leases.renew([new], tx.now(), 30)) == 1


def test_work_without_a_ring_is_rung_once_per_interval(store: Store, clock: FakeClock) -> None:
    job = planned(store, shards=2)
    claimed(store, ttl_s=600)  # leased work is not rung
    with store.snapshot() as tx:
        [_, shard] = tx.shards.of_job(job.id, limit=2)

    assert unrung(store) == []  # its creator has just rung
    clock.advance(seconds=10)
    assert unrung(store) == [shard.id]
    mark_signalled(store, shard.id)
    clock.advance(seconds=9)
    assert unrung(store) == []
    clock.advance(seconds=1)
    assert unrung(store) == [shard.id]


def test_each_kind_of_work_is_rung_by_itself_best_class_first(store: Store, clock: FakeClock) -> None:
    online = submit_online(store)
    planned(store, priority=PriorityClass.BACKGROUND)
    best = planned(store, priority=PriorityClass.INTERACTIVE)
    clock.advance(seconds=10)

    with store.snapshot() as tx:
        [first, second] = tx.shards.unrung(tx.now(), RING_AFTER, kind=JobKind.BULK, limit=10)
        assert [shard.id for shard in tx.shards.of_job(best.id, limit=1)] == [first[0]]
    assert (first[1], second[1]) == (0, 2)
    assert unrung(store, JobKind.ONLINE) == [online.shard_id]


def test_finished_rows_do_not_hide_that_another_row_kills_workers(store: Store, clock: FakeClock) -> None:
    planned(store)
    for _ in range(2):
        requeue(store, lost_with_its_worker(store, clock))

    assert commit_rows(store, claimed(store).lease)

    clock.advance(seconds=60)
    [lost] = expired(store)
    assert lost.crash_count == 2


@pytest.mark.parametrize("is_charged", [True, False])
def test_a_shard_lost_with_its_worker_is_charged_an_attempt_and_a_crash_if_it_had_a_part_in_it(
    store: Store, clock: FakeClock, is_charged: bool
) -> None:
    planned(store)
    for crashes in range(3):
        lost = lost_with_its_worker(store, clock)
        assert (lost.attempts, lost.crash_count) == ((crashes + 1, crashes) if is_charged else (1, 0))
        requeue(store, lost, counts_attempt=is_charged)


def test_a_shard_is_isolated_until_a_recovery_says_otherwise(store: Store, clock: FakeClock) -> None:
    planned(store)
    for isolate, is_isolating in ((True, False), (False, True), (False, False)):
        lost = lost_with_its_worker(store, clock)
        assert lost.is_isolating is is_isolating
        requeue(store, lost, isolate=isolate)


def test_what_was_under_way_in_one_term_is_not_held_against_the_next(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store).lease
    with store.database.write() as connection:
        connection.execute(update(tables.shard).values(suspects=[4, 7], tokens_in_flight=96))
    clock.advance(seconds=60)
    [lost] = expired(store)
    assert (lost.shard_id, lost.in_flight, lost.tokens_in_flight) == (lease.shard_id, (4, 7), 96)
    requeue(store, lost)

    lost = lost_with_its_worker(store, clock)

    assert (lost.in_flight, lost.tokens_in_flight) == ((), 0)


def test_a_claim_says_which_rows_are_suspected_and_which_are_dead(store: Store, clock: FakeClock) -> None:
    job = planned(store)
    assert claimed(store).crash_history == CrashHistory()
    clock.advance(seconds=60)
    [lost] = expired(store)
    crashed = {"shard_id": lost.shard_id, "crashes": 1, "explained": 1, "last_cause": ExitCause.ABORTED}
    dead = {"tenant_id": job.tenant_id, "job_id": job.id, "shard_id": lost.shard_id, "row": 7, "crashes": 3}
    with store.database.write() as connection:
        connection.execute(insert(tables.row_crash), [{**crashed, "row": row} for row in (9, 7, 4)])
        connection.execute(
            insert(tables.dead_row).values(
                **dead, id="dlq_1", cause=ExitCause.ABORTED, died_at=clock.now, state="dead"
            )
        )
    requeue(store, lost)

    history = claimed(store).crash_history

    assert history == CrashHistory(crashes=1, suspects=(4, 9), dead=frozenset({7}))
    assert history.is_watched


def lost_with_its_worker(store: Store, clock: FakeClock) -> ExpiredLease:
    claimed(store)
    clock.advance(seconds=60)
    [lost] = expired(store)
    return lost


def requeue(store: Store, lost: ExpiredLease, **how: Any) -> None:
    with store.transaction() as tx:
        assert tx.leases.requeue(lost, **how)
