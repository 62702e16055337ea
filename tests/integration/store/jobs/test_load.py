"""How much waits: of one tenant, and of all."""

from nightshift.lifecycle.transitions import record_answer
from nightshift.store import Store
from nightshift.store.jobs.load import BulkLoad, OnlineLoad
from nightshift.testing import (
    FakeClock,
    an_answer,
    asked,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
)


def test_requests_wait_until_they_are_answered_and_not_only_until_they_are_claimed(store: Store) -> None:
    first, _, _ = asked(store), asked(store), asked(store, tenant_id="other")
    claim = claimed_online(store, first.shard_id)
    with store.snapshot() as tx:
        assert tx.load.online("default") == OnlineLoad(own=2, total=3, tenants=2)

    with store.transaction() as tx:
        assert record_answer(tx, claim, an_answer(), tx.now())

    with store.snapshot() as tx:
        assert tx.load.online("default") == OnlineLoad(own=1, total=2, tenants=2)
        assert tx.load.online("tenant_without_jobs") == OnlineLoad(own=0, total=2, tenants=2)


def test_the_oldest_request_is_the_one_that_no_worker_has_taken(store: Store, clock: FakeClock) -> None:
    with store.snapshot() as tx:
        assert tx.load.oldest_online() is None
    first = asked(store)
    clock.advance(seconds=5)
    second_at = clock.now
    asked(store, tenant_id="other")

    claimed_online(store, first.shard_id)

    with store.snapshot() as tx:
        assert tx.load.oldest_online() == second_at


def test_rows_wait_until_they_have_a_result(store: Store, clock: FakeClock) -> None:
    planned(store, rows_total=10)
    clock.advance(seconds=1)  # the older is claimed
    planned(store, rows_total=100, tenant_id="other")
    submit(store)  # its rows are not known yet
    started_at = clock.advance(seconds=1)
    commit_rows(store, claimed(store).lease, rows=4, failed=1)

    with store.snapshot() as tx:
        assert tx.load.bulk("default") == BulkLoad(
            jobs=2, rows=6, rows_total=106, tenants=2, rows_done=4, running_since=started_at
        )
        assert tx.load.bulk("tenant_without_jobs").rows_total == 106


def test_a_house_with_nothing_to_do_has_no_load(store: Store) -> None:
    with store.snapshot() as tx:
        assert tx.load.online("default") == OnlineLoad(0, 0, 0)
        assert tx.load.bulk("default") == BulkLoad(0, 0, 0, 0, 0, None)
