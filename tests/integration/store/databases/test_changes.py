"""Commits are noticed without a query of a table, whichever process made them."""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from nightshift.errors import DatabaseUnavailable
from nightshift.store import Store, Transaction
from nightshift.store.databases.changes import Changes
from nightshift.store.databases.database import Database
from tests.integration.store.watching import counters


@pytest.fixture
def changes(store: Store) -> Iterator[Changes]:
    """A watched database, at which a first look has been taken."""
    watched = store.changes()
    assert watched.seen()
    yield watched
    watched.close()


def write(tx: Transaction) -> None:
    tx.counters.add("commits", 1)


def test_where_nothing_is_committed_nothing_has_changed(store: Store, changes: Changes) -> None:
    counters(store)
    assert [changes.seen(), changes.seen()] == [False, False]


def test_each_commit_is_seen_once(store: Store, changes: Changes) -> None:
    for _ in range(3):
        with store.transaction() as tx:
            write(tx)
        assert [changes.seen(), changes.seen()] == [True, False]


def test_the_commit_of_a_transaction_that_began_earlier_is_seen(store: Store, changes: Changes) -> None:
    with store.transaction() as tx:
        write(tx)
        changes.seen()
        assert not changes.seen()
    assert changes.seen()


def test_a_lost_connection_is_an_error_once_and_then_counts_as_a_change(
    postgresql_database: Database,
) -> None:
    changes = Changes(postgresql_database)
    changes.seen()
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with postgresql_database.read() as connection:
        connection.execute(text(f"{others} AND datname = current_database()"))

    with pytest.raises(DatabaseUnavailable):
        changes.seen()
    assert [changes.seen(), changes.seen()] == [True, False]
    changes.close()
