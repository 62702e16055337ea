"""The outbox: rings owed to Redis, written with the work they announce."""

from nightshift.jobs import JobKind
from nightshift.store import Store
from tests.helpers.fakes import FakeClock


def test_rings_wait_in_order_for_a_moment_and_until_they_are_sent(store: Store, clock: FakeClock) -> None:
    made_at = clock.now
    with store.transaction() as tx:
        online = tx.outbox.add(JobKind.ONLINE, 0, made_at, shard_id="shard_1")
        bulk = tx.outbox.add_bulk(3, 2, clock.advance(seconds=5))
        assert tx.outbox.add_bulk(0, 2, clock.now) == []
    assert [(ring.kind, ring.shard_id, ring.priority_rank) for ring in bulk] == [(JobKind.BULK, None, 2)] * 3

    with store.transaction() as tx:
        assert tx.outbox.waiting(made_at, limit=10) == [online], "their creator may send the others itself"
        assert tx.outbox.waiting(tx.now(), limit=10) == [online, *bulk]
        assert tx.outbox.waiting(tx.now(), limit=1) == [online]
        tx.outbox.delete([])
        assert tx.outbox.length() == 4
        tx.outbox.delete([online.id])
        assert tx.outbox.waiting(tx.now(), limit=10) == bulk
