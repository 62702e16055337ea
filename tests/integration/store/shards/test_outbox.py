"""The outbox: rings owed to Redis, written with the work they announce."""

from nightshift.jobs import JobKind
from nightshift.store import Store
from tests.helpers.fakes import FakeClock


def test_rings_wait_in_order_until_they_are_sent(store: Store, clock: FakeClock) -> None:
    with store.transaction() as tx:
        online = tx.outbox.add(JobKind.ONLINE, 0, tx.now(), shard_id="shard_1")
        bulk = tx.outbox.add(JobKind.BULK, 2, tx.now())
        assert tx.outbox.length() == 2

    with store.transaction() as tx:
        assert tx.outbox.waiting(tx.now(), limit=10) == [online, bulk]
        assert tx.outbox.waiting(tx.now(), limit=1) == [online]
        tx.outbox.delete([online.id])
        assert tx.outbox.waiting(tx.now(), limit=10) == [bulk]


def test_many_rings_are_written_at_once(store: Store) -> None:
    with store.transaction() as tx:
        rings = tx.outbox.add_bulk(3, 2, tx.now())
        assert [(ring.kind, ring.shard_id, ring.priority_rank) for ring in rings] == [
            (JobKind.BULK, None, 2)
        ] * 3
        assert tx.outbox.waiting(tx.now(), limit=10) == rings
        assert tx.outbox.add_bulk(0, 2, tx.now()) == []


def test_a_creator_has_a_moment_to_send_its_ring_itself(store: Store, clock: FakeClock) -> None:
    with store.transaction() as tx:
        made_at = clock.now
        first = tx.outbox.add(JobKind.BULK, 1, made_at)
        second = tx.outbox.add(JobKind.BULK, 1, clock.advance(seconds=5))

        assert tx.outbox.waiting(made_at, limit=10) == [first]
        assert tx.outbox.waiting(clock.now, limit=10) == [first, second]


def test_nothing_sent_deletes_nothing(store: Store) -> None:
    with store.transaction() as tx:
        tx.outbox.add(JobKind.BULK, 1, tx.now())
        tx.outbox.delete([])
        assert tx.outbox.length() == 1
