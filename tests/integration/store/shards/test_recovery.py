"""Shards that come back: handed back, delayed, or taken from a worker that is gone."""

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from nightshift.jobs import CrashHistory, ShardState, StopReason
from nightshift.jobs.leases import Term
from nightshift.store import Store, tables
from nightshift.store.shards.leases import ExpiredLease, HeldLease
from tests.helpers.fakes import TTL_S, FakeClock, claimed, commit_rows, planned, rescue
from tests.integration.store.watching import request_stop


def expired(store: Store, *, limit: int = 10) -> list[ExpiredLease]:
    with store.snapshot() as tx:
        return list(tx.leases.expired(tx.now(), limit))


def test_a_shard_that_broke_is_charged_an_attempt_and_no_crash_and_one_that_waits_neither(
    store: Store, clock: FakeClock
) -> None:
    planned(store)
    for give_back in ("return_broken", "delay"):
        lease = claimed(store).lease
        with store.transaction() as tx:
            assert getattr(tx.leases, give_back)(lease, clock.now + timedelta(seconds=1))
        clock.advance(seconds=1)

    claim = claimed(store)
    assert (claim.shard.attempts, claim.shard.faults) == (2, 1)
    assert claim.crash_history == CrashHistory()


def test_a_shard_handed_back_is_not_charged_and_keeps_its_rows_and_its_carry_over(store: Store) -> None:
    planned(store)
    for number, carry_over in enumerate((None, "segments/first", "segments/second", None)):
        lease = claimed(store).lease
        commit_rows(store, lease, number)
        with store.transaction() as tx:
            assert tx.leases.hand_back(lease, carry_over)

    shard = claimed(store).shard
    assert (shard.attempts, shard.term, shard.rows_done) == (1, 5, 16)
    assert shard.carry_over_key == "segments/second"


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


def lost_with_its_worker(store: Store, clock: FakeClock) -> ExpiredLease:
    claimed(store)
    clock.advance(seconds=60)
    [lost] = expired(store)
    return lost


def requeue(store: Store, lost: ExpiredLease, **how: Any) -> None:
    with store.transaction() as tx:
        assert tx.leases.requeue(lost, **how)


def test_a_claim_the_worker_never_heard_of_runs_out(store: Store, clock: FakeClock) -> None:
    """The commit went through, its answer was lost: no worker runs the shard, so no renewal may keep it."""
    planned(store, shards=2)
    known, unheard = claimed(store).lease, claimed(store).lease
    clock.advance(seconds=29)
    with store.transaction() as tx:
        assert tx.leases.renew([], tx.now(), TTL_S) == []
        assert tx.leases.renew([known], tx.now(), TTL_S) == [HeldLease(known.shard_id, Term(1), None, None)]
    clock.advance(seconds=1)

    assert [lost.shard_id for lost in expired(store)] == [unheard.shard_id]


def test_a_stop_order_arrives_with_the_renewal(store: Store, clock: FakeClock) -> None:
    stopped, other = planned(store), planned(store)
    leases = [claimed(store).lease, claimed(store).lease]
    request_stop(store, stopped)
    ordered_at = clock.now
    clock.advance(seconds=4)

    with store.transaction() as tx:
        renewed = {held.shard_id: held for held in tx.leases.renew(leases, tx.now(), TTL_S)}
    orders = {
        lease.job_id: (renewed[lease.shard_id].stop_reason, renewed[lease.shard_id].stop_requested_at)
        for lease in leases
    }
    assert orders == {stopped.id: (StopReason.CANCELLED, ordered_at), other.id: (None, None)}
