"""Counters that are not what there is are corrected."""

from nightshift.store import Store
from nightshift.tenants.holdings import Holding
from scheduler.duties.recounting import Recounting
from tests.helpers.fakes import a_file


def test_what_was_not_counted_is_counted_once(store: Store) -> None:
    with store.transaction() as tx:
        tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        tx.holdings._added.clear()  # as a process of the release before does it
    duty = Recounting(store, interval_s=300)

    with store.snapshot() as tx:
        now = tx.now()
    assert [duty.run_once(now).corrected for _ in range(2)] == [1, 0]
    with store.snapshot() as tx:
        assert tx.holdings.total("acme") == Holding(stored_files=1, stored_bytes=10)
