"""How much waits: of one tenant, and of all."""

from nightshift.lifecycle.transitions import record_answer
from nightshift.store import Store, Transaction
from nightshift.store.jobs.load import Pace
from tests.helpers.fakes import (
    FakeClock,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
    submit_online,
)


def online(tx: Transaction, tenant: str) -> tuple[int, int, int]:
    """Unanswered requests: the tenant's, all tenants', and tenants with any."""
    queue = tx.holdings.queue(tenant)
    return queue.own.online_requests, queue.online_total, queue.online_tenants


def bulk(tx: Transaction, tenant: str) -> tuple[int, int, int, int]:
    """The tenant's jobs and rows, all tenants' rows, and tenants with a job."""
    queue = tx.holdings.queue(tenant)
    return queue.own.bulk_jobs, queue.own.bulk_rows, queue.rows_total, queue.bulk_tenants


def test_requests_wait_until_they_are_answered_and_not_only_until_they_are_claimed(store: Store) -> None:
    first, _, _ = submit_online(store), submit_online(store), submit_online(store, tenant_id="other")
    claim = claimed_online(store, first.shard_id)
    with store.snapshot() as tx:
        assert online(tx, "default") == (2, 3, 2)

    with store.transaction() as tx:
        assert record_answer(tx, claim, an_answer(), tx.now())

    with store.snapshot() as tx:
        assert online(tx, "default") == (1, 2, 2)
        assert online(tx, "tenant_without_jobs") == (0, 2, 2)


def test_the_oldest_request_is_the_one_that_no_worker_has_taken(store: Store, clock: FakeClock) -> None:
    with store.snapshot() as tx:
        assert tx.load.oldest_online() is None
    first = submit_online(store)
    clock.advance(seconds=5)
    second_at = clock.now
    submit_online(store, tenant_id="other")

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
        assert bulk(tx, "default") == (2, 6, 106, 2)
        assert bulk(tx, "tenant_without_jobs") == (0, 0, 106, 2)
        assert tx.load.bulk_pace() == Pace(rows_done=4, running_since=started_at)
