"""How a worker makes itself known."""

from contextlib import AbstractContextManager

import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet import Capacity, WorkerState
from nightshift.store import Store, Transaction
from workers.registration import Registration


def test_a_worker_that_starts_without_a_database_waits_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end for that would be to be started again in vain, until somebody gives it up."""
    monkeypatch.setattr("workers.registration.RETRY_S", 0.0)
    outages, transaction = [DatabaseUnavailable(), DatabaseUnavailable()], store.transaction

    def ask() -> AbstractContextManager[Transaction]:
        if outages:
            raise outages.pop()
        return transaction()

    monkeypatch.setattr(store, "transaction", ask)
    Registration(store, "worker-1", Capacity.ON_DEMAND).register()

    with store.snapshot() as tx:
        [worker] = tx.workers.list()
    assert (worker.id, worker.state) == ("worker-1", WorkerState.STARTING)
