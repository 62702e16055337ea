"""How a worker makes itself known."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import DatabaseUnavailable, DatabaseUnusable, SchemaBehind
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import Capacity, Machine, Worker, WorkerState
from nightshift.store import Store, Transaction
from tests.helpers.databases import migrated_sqlite
from workers.health.registration import Registration


@pytest.fixture
def outages(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[DatabaseUnavailable]:
    """Each is raised by one transaction."""
    monkeypatch.setattr("workers.health.registration.RETRY_S", 0.0)
    outages: list[DatabaseUnavailable] = []
    transaction = store.transaction

    def ask(**options: Any) -> AbstractContextManager[Transaction]:
        if outages:
            raise outages.pop()
        return transaction(**options)

    monkeypatch.setattr(store, "transaction", ask)
    return outages


def test_a_worker_that_starts_without_a_database_waits_for_it(
    store: Store, outages: list[DatabaseUnavailable]
) -> None:
    """If it ended, it would be restarted in vain until its supervisor gave up."""
    registration = Registration(store, "worker-1", Machine(Capacity.ON_DEMAND, ("night", "large")))
    outages += [DatabaseUnavailable(), DatabaseUnavailable()]
    registration.register()
    starting = only_worker(store)
    outages += [DatabaseUnavailable(), DatabaseUnavailable()]
    registration.open([Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="r1")])
    ready = only_worker(store)

    assert (starting.id, starting.state) == ("worker-1", WorkerState.STARTING)
    assert starting.pools == ("night", "large")
    assert (ready.models, ready.state) == (("demo",), WorkerState.READY)


def only_worker(store: Store) -> Worker:
    with store.snapshot() as tx:
        [worker] = tx.workers.list()
    return worker


def test_a_wait_is_told_once_for_each_kind_of_reason(
    store: Store, outages: list[DatabaseUnavailable], caplog: pytest.LogCaptureFixture
) -> None:
    """The words of one kind may differ, as those of a connection do."""
    outages += [DatabaseUnavailable(f"port {number} is closed") for number in range(3)]
    outages += [SchemaBehind(f"at {number} of the migrations") for number in range(3)]  # these come first
    Registration(store, "worker-1", Machine(Capacity.ON_DEMAND)).register()

    assert [record.reason for record in caplog.records] == ["at 2 of the migrations", "port 2 is closed"]


def test_a_worker_whose_schema_lacks_something_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    database = migrated_sqlite(tmp_path / "nightshift.db")
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE segment DROP COLUMN earlier")

    with pytest.raises(DatabaseUnusable, match=r"column segment\.earlier is missing"):
        Registration(Store(database), "worker-1", Machine(Capacity.ON_DEMAND)).register()
    database.close()
