"""Migrations: up, down, up again, by several at once; and what they make is what the code expects."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect

from nightshift.errors import ConfigurationError, DatabaseUnusable, SchemaBehind
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNAVAILABLE_EXIT
from nightshift.store import Store, tables
from nightshift.store.databases import migrate
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import change_schema, check_schema, downgrade, upgrade
from tests.helpers.fakes import claimed, planned
from tests.integration.store.databases.recording import is_current
from tests.integration.store.racing import WAIT_MAX_S, at_once


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    """A database without a schema, on each in turn."""
    database = Database(empty_database_url)
    yield database
    database.close()


def tables_in(database: Database) -> set[str]:
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    return list(compare_metadata(context, tables.metadata))


def test_the_migrations_make_exactly_the_tables_the_code_expects_and_go_down_and_up_again(
    empty_database: Database,
) -> None:
    assert not is_current(empty_database)
    for _ in range(2):
        upgrade(empty_database)
        assert is_current(empty_database)
        with empty_database.read() as connection:
            assert differences(connection) == []
        assert tables_in(empty_database) == {*tables.metadata.tables, "alembic_version"}
        assert claimed_after_planning(empty_database)

        downgrade(empty_database, "base")
        assert not is_current(empty_database)
        assert tables_in(empty_database) == {"alembic_version"}


def test_constraints_and_indexes_have_the_names_the_code_gives_them(own_database: Database) -> None:
    """alembic does not compare primary keys, and foreign keys on SQLite by their columns only."""
    with own_database.read() as connection:
        catalogue = inspect(connection)
        for table in tables.metadata.sorted_tables:
            assert catalogue.get_pk_constraint(table.name)["constrained_columns"] == [
                column.name for column in table.primary_key
            ]
            assert {key["name"] for key in catalogue.get_foreign_keys(table.name)} == {
                key.name for key in table.foreign_key_constraints
            }
            assert {
                (index["name"], tuple(index["column_names"]))
                for index in catalogue.get_indexes(table.name)
                if not index.get("duplicates_constraint")  # a unique constraint's own
            } == {(index.name, tuple(column.name for column in index.columns)) for index in table.indexes}


def test_a_difference_would_be_noticed(own_database: Database) -> None:
    with own_database.write() as connection:
        connection.exec_driver_sql("DROP INDEX ix_shard_claim")
        connection.exec_driver_sql("ALTER TABLE job ADD COLUMN colour TEXT")
        assert {difference[0] for difference in differences(connection)} == {"add_index", "remove_column"}


def make_later(database: Database, *changes: str) -> None:
    """Changes the schema as a release to come may."""
    with database.write() as connection:
        for change in (*changes, "UPDATE alembic_version SET version_num = '9999'"):
            connection.exec_driver_sql(change)


def claimed_after_planning(database: Database) -> bool:
    store = Store(database)
    planned(store)
    return claimed(store).lease.term == 1


def test_a_schema_of_a_later_release_serves_if_it_has_all_we_know_and_is_not_upgraded(
    own_database: Database,
) -> None:
    make_later(own_database, "ALTER TABLE job ADD COLUMN colour TEXT", "CREATE TABLE colour (name TEXT)")

    check_schema(own_database)
    assert not is_current(own_database)
    assert claimed_after_planning(own_database)
    with pytest.raises(ConfigurationError, match=r"a schema of another release .*9999.*: start that release"):
        upgrade(own_database)


@pytest.mark.parametrize(
    ("url", "exit_code", "says"),
    [
        pytest.param(
            "mysql://nowhere",
            CONFIGURATION_EXIT,
            "NIGHTSHIFT_DATABASE_URL names 'mysql'",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "sqlite:////dev/null/nowhere.db",
            UNAVAILABLE_EXIT,
            "to its folder (/dev/null/nowhere.db)",
            marks=pytest.mark.exhaustive,
        ),
        ("postgresql://:hush@127.0.0.1:1/nowhere", UNAVAILABLE_EXIT, "The database cannot be used right now"),
    ],
)
def test_what_keeps_it_from_migrating_is_one_line(url: str, exit_code: int, says: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nightshift.store.databases.migrate"],
        env={**os.environ, "NIGHTSHIFT_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_MAX_S,
    )

    assert (ended.returncode, ended.stderr.count("\n")) == (exit_code, 1), ended.stderr
    assert ended.stderr.startswith("cannot start: ")
    assert says in ended.stderr
    assert "hush" not in ended.stderr


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE job RENAME COLUMN spec TO wishes", "ALTER TABLE counter RENAME TO tally"],
    ids=["column", "table"],
)
def test_a_schema_that_lacks_what_we_know_does_not_serve(own_database: Database, change: str) -> None:
    make_later(own_database, change)

    with pytest.raises(DatabaseUnusable):
        check_schema(own_database)


def test_an_earlier_schema_or_none_does_not_serve(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaBehind, match=r"is at none of the migrations.* run `python -m "):
        check_schema(empty_database)
    upgrade(empty_database)
    check_schema(empty_database)
    [released, *_] = migrate._known_revisions()
    monkeypatch.setattr(migrate, "_known_revisions", lambda: ["9998", released])
    with pytest.raises(SchemaBehind, match=f"is at {released} of the migrations"):
        check_schema(empty_database)


@pytest.mark.parametrize("revision", ["0001", "0045"])
def test_a_schema_from_before_the_first_release_is_refused_with_what_to_do(
    own_database: Database, revision: str
) -> None:
    """Everything that looks at the schema does it by one of these two."""
    with own_database.write() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")

    says = f"is at migration {revision}, and this version goes on from 0046.*: begin with a new database, or "
    for look in (check_schema, upgrade):
        with pytest.raises(DatabaseUnusable, match=says):
            look(own_database)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("INSERT INTO alembic_version VALUES ('0045')", r"has 2 rows \(0045, .*\), and one is right"),
        ("DELETE FROM alembic_version", r"names no migration, and there are tables \(api_key, "),
        ("DROP TABLE alembic_version", r"names no migration, and there are tables \(api_key, "),
    ],
    ids=["two rows", "no row", "no table"],
)
def test_a_revision_that_cannot_be_told_is_one_line_that_names_the_database(
    own_database: Database, statement: str, says: str
) -> None:
    with own_database.write() as connection:
        connection.exec_driver_sql(statement)

    for look in (check_schema, upgrade, migrate.revisions):
        with pytest.raises(DatabaseUnusable, match=says) as refusal:
            look(own_database)
        assert f"restore a backup of {own_database.place}, or" in refusal.value.message
        assert "\n" not in refusal.value.message


def test_an_upgrade_of_a_current_database_changes_nothing(own_database: Database) -> None:
    planned(Store(own_database))

    upgrade(own_database)

    with Store(own_database).snapshot() as tx:
        assert len(tx.jobs.list("default", limit=10)) == 1


def test_several_that_upgrade_at_once_take_turns(empty_database_url: str) -> None:
    """Each with connections of its own, as processes have."""
    databases = [Database(empty_database_url) for _ in range(3)]

    at_once(*[lambda database=database: upgrade(database) for database in databases])

    assert all(is_current(database) for database in databases)
    for database in databases:
        database.close()


@pytest.mark.databases("sqlite")  # whose file both lock
def test_two_processes_that_upgrade_at_once_both_succeed(empty_database_url: str, tmp_path: Path) -> None:
    environment = {"NIGHTSHIFT_DATABASE_URL": empty_database_url, "PATH": ""}
    command = [sys.executable, "-m", "nightshift.store.databases.migrate"]
    processes = [
        subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]

    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        *migrated, last = said.splitlines()
        assert last == "the database has the current schema"
        assert [line.partition(" to ")[0] for line in migrated] in ([], ["migrated from an empty database"])

    database = Database(empty_database_url)
    assert is_current(database)
    database.close()


def test_a_migration_that_a_service_at_work_was_in_the_way_of_is_begun_anew(
    postgresql_database: Database,
) -> None:
    """The service holds a shard and wants its job; the migration holds the jobs and wants the shards."""
    tries: list[int] = []
    both_hold_one = threading.Barrier(2)

    def migrate(connection: Connection) -> None:
        tries.append(1)
        connection.exec_driver_sql("ALTER TABLE job ADD COLUMN colour TEXT")
        if len(tries) == 1:
            both_hold_one.wait(WAIT_MAX_S)
        connection.exec_driver_sql("ALTER TABLE shard ADD COLUMN colour TEXT")

    def work() -> None:
        with postgresql_database.write_at_leisure() as connection:
            connection.exec_driver_sql("SET LOCAL deadlock_timeout = '1h'")  # it is not the one to notice
            connection.exec_driver_sql("LOCK TABLE shard IN ROW EXCLUSIVE MODE")
            both_hold_one.wait(WAIT_MAX_S)
            connection.exec_driver_sql("LOCK TABLE job IN ROW SHARE MODE")

    def undo(connection: Connection) -> None:
        for table in ("job", "shard"):
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN IF EXISTS colour")

    try:
        at_once(lambda: change_schema(postgresql_database, migrate), work)
        with postgresql_database.read() as connection:
            assert "colour" in {column["name"] for column in inspect(connection).get_columns("shard")}
    finally:
        change_schema(postgresql_database, undo)
    assert len(tries) == 2


def test_a_migration_that_fails_leaves_the_schema_as_it_was(empty_database: Database) -> None:
    """The name of an index, which comes after tables, is taken."""
    with empty_database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE other (id INTEGER)")
        connection.exec_driver_sql("CREATE INDEX ix_segment_job ON other (id)")

    with pytest.raises(Exception, match="already exists"):
        upgrade(empty_database)

    assert tables_in(empty_database) == {"other"}


def test_a_store_without_a_schema_is_not_taken_for_an_empty_one(empty_database: Database) -> None:
    with pytest.raises(DatabaseUnusable, match=r"no such table|does not exist"):
        planned(Store(empty_database))
