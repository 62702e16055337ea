"""A database that a release made is upgraded to what a new one is, and its jobs go on.

`python -m tests.integration.store.databases.releases` writes the dumps of a release.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import Inspector, inspect, text

from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from tests.helpers.fakes import MODEL, FakeClock, claimed, claimed_online, commit_rows, completed
from tests.integration.store.databases.recording import is_current
from tests.integration.store.databases.releases import dump_of, dumped, this_release

TRIGGERS = {
    "sqlite": "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT pg_get_triggerdef(oid), tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal",
}


@pytest.fixture(params=dumped())
def released(request: pytest.FixtureRequest, empty_database_url: str) -> Iterator[Database]:
    """A database as a release left it, on each in turn."""
    with closing(Database(empty_database_url)) as database:
        dump = dump_of(request.param, database.dialect).read_text()
        if database.is_sqlite:
            with closing(sqlite3.connect(empty_database_url.removeprefix("sqlite:///"))) as connection:
                connection.executescript(dump)
        else:
            with psycopg.connect(empty_database_url.replace("+psycopg", "")) as connection:
                connection.execute(dump.encode())
        yield database


def described(database: Database) -> dict[str, object]:
    """The catalogue's entries, without the order of columns: an upgrade adds them at the end."""
    with database.read() as connection:
        catalogue = inspect(connection)
        tables = {name: described_table(catalogue, name) for name in catalogue.get_table_names()}
        triggers = sorted(map(tuple, connection.execute(text(TRIGGERS[database.dialect]))))
        return {**tables, "triggers": triggers}


def described_table(catalogue: Inspector, table: str) -> dict[str, object]:
    parts = {
        "columns": catalogue.get_columns(table),
        "foreign keys": catalogue.get_foreign_keys(table),
        "unique": catalogue.get_unique_constraints(table),
        "checks": catalogue.get_check_constraints(table),
        "indices": catalogue.get_indexes(table),
    }
    named = {
        kind: {str(part["name"]): comparable(part) for part in described} for kind, described in parts.items()
    }
    return {**named, "primary key": comparable(catalogue.get_pk_constraint(table))}


def comparable(described: object) -> object:
    """Types have no equality, and PostgreSQL writes casts in predicates in another way after a restore."""
    if isinstance(described, dict):
        return {name: comparable(value) for name, value in described.items()}
    return re.sub(r"::(text|character varying)(\[\])?|[()]", "", str(described))


def test_a_database_of_a_release_becomes_what_a_new_one_is(
    released: Database, request: pytest.FixtureRequest
) -> None:
    new: Database = request.getfixturevalue(f"{released.dialect}_database")

    upgrade(released)

    assert is_current(released)
    assert described(released) == described(new)


def test_the_jobs_of_a_release_go_on(released: Database) -> None:
    upgrade(released)
    store = Store(released, clock=FakeClock())
    with store.snapshot() as tx:
        [online] = tx.claims.next_online([MODEL], tx.now(), limit=10)

    lease = claimed(store).lease

    assert commit_rows(store, lease, rows=3)
    assert completed(store, lease, rows_total=3)
    assert claimed_online(store, online).lease.term == 1


def test_a_difference_would_be_noticed(released: Database, request: pytest.FixtureRequest) -> None:
    new: Database = request.getfixturevalue(f"{released.dialect}_database")
    upgrade(released)
    expected = described(new)
    for change, table in (
        ("DROP INDEX ix_segment_with_failures", "segment"),
        ("CREATE INDEX ix_segment_with_failures ON segment (job_id, id) WHERE failed > 1", "segment"),
        ("ALTER TABLE counter ADD COLUMN colour TEXT DEFAULT 'red'", "counter"),
    ):
        with released.write() as connection:
            connection.exec_driver_sql(change)
        assert described(released)[table] != expected[table], change


def test_this_release_has_its_dumps() -> None:
    for database in ("sqlite", "postgresql"):
        assert dump_of(this_release(), database).exists()
