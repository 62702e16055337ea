"""Heartbeats: leases are kept, lost ones are missed, and stop orders ride along."""

from nightshift.jobs import StopReason
from nightshift.jobs.leases import Lease, Term
from nightshift.lifecycle import transitions
from nightshift.store import Store
from nightshift.store.shards.leases import HeldLease
from tests.helpers.fakes import FakeClock, claimed, planned, rescue


def renew(store: Store, *held: Lease, ttl_s: float = 30) -> list[HeldLease]:
    with store.transaction() as tx:
        return sorted(tx.leases.renew(held, tx.now(), ttl_s), key=lambda lease: lease.shard_id)


def test_a_renewed_lease_does_not_run_out(store: Store, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store, ttl_s=30).lease

    for _ in range(5):
        clock.advance(seconds=29)
        assert renew(store, lease) == [HeldLease(lease.shard_id, Term(1), None, None)]
        assert rescue(store) == 0

    clock.advance(seconds=30)
    assert rescue(store) == 1


def test_a_claim_the_worker_never_heard_of_runs_out(store: Store, clock: FakeClock) -> None:
    """The commit went through, its answer was lost: no worker runs the shard, so no renewal may keep it."""
    planned(store, shards=2)
    known = claimed(store, "worker_1").lease
    unheard = claimed(store, "worker_1").lease
    clock.advance(seconds=29)
    renew(store, known)
    clock.advance(seconds=1)

    with store.snapshot() as tx:
        assert [lost.shard_id for lost in tx.leases.expired(clock.now, limit=10)] == [unheard.shard_id]


def test_holding_nothing_asks_nothing(store: Store) -> None:
    assert renew(store) == []


def test_a_stop_order_arrives_with_the_renewal(store: Store, clock: FakeClock) -> None:
    stopped, other = planned(store), planned(store)
    leases = [claimed(store).lease, claimed(store).lease]
    with store.transaction() as tx:
        transitions.request_stop(tx, stopped, StopReason.CANCELLED, tx.now())
    ordered_at = clock.now
    clock.advance(seconds=4)

    orders = {
        lease.job_id: (held.stop_reason, held.stop_requested_at)
        for lease in leases
        for held in renew(store, lease)
    }

    assert orders == {stopped.id: (StopReason.CANCELLED, ordered_at), other.id: (None, None)}
