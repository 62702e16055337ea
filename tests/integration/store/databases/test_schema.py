"""A schema that is not what the migrations make is named, column by column, before any work is lost on it."""

import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from nightshift.errors import DatabaseUnavailable, DatabaseUnusable
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import change_schema, check_schema, upgrade
from tests.helpers.fakes import planned
from tests.integration.servers import PostgresServer


def change(database: Database, *statements: str) -> None:
    with database.write() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def difference_of(database: Database) -> str:
    with pytest.raises(DatabaseUnusable) as refusal:
        check_schema(database)
    return refusal.value.message


def test_what_the_migrations_make_is_what_the_code_expects(own_database: Database) -> None:
    check_schema(own_database)


def test_a_database_made_by_an_earlier_version_of_a_migration_is_named_and_mended_as_it_says(
    own_database: Database,
) -> None:
    """Migration 0027 was changed after its first release: `segment.earlier` came to it."""
    change(own_database, "ALTER TABLE segment DROP COLUMN earlier")

    says = difference_of(own_database)
    assert "column segment.earlier is missing (earlier INTEGER" in says
    definition = says.partition("is missing (")[2].removesuffix(")")
    with pytest.raises(DatabaseUnusable):
        upgrade(own_database)
    change(own_database, f"ALTER TABLE segment ADD COLUMN {definition}")
    check_schema(own_database)
    planned(Store(own_database))


def test_every_table_is_looked_for(own_database: Database) -> None:
    for table in tables.metadata.tables:
        change(own_database, f'ALTER TABLE "{table}" RENAME TO elsewhere')
        assert f"table {table} is missing" in difference_of(own_database)
        change(own_database, f'ALTER TABLE elsewhere RENAME TO "{table}"')


# Where SQLite cannot alter a column, it is made anew.
@pytest.mark.parametrize(
    ("sqlite", "postgresql", "says"),
    [
        (
            ["ALTER TABLE worker DROP COLUMN figures", "ALTER TABLE worker ADD COLUMN figures TEXT"],
            ["ALTER TABLE worker ALTER COLUMN figures TYPE TEXT"],
            "column worker.figures is TEXT instead of ",
        ),
        (
            [
                "ALTER TABLE segment DROP COLUMN earlier",
                "ALTER TABLE segment ADD COLUMN earlier INTEGER DEFAULT 0",
            ],
            ["ALTER TABLE segment ALTER COLUMN earlier DROP NOT NULL"],
            "column segment.earlier may be null",
        ),
        (
            [
                "ALTER TABLE worker DROP COLUMN figures",
                "ALTER TABLE worker ADD COLUMN figures JSON NOT NULL DEFAULT '{}'",
            ],
            ["ALTER TABLE worker ALTER COLUMN figures SET NOT NULL"],
            "column worker.figures may not be null",
        ),
        (
            ["DROP INDEX ix_job_output_place"],
            ["DROP INDEX ix_job_output_place"],
            "table job has no unique index on output_place",
        ),
        (
            [
                "DROP INDEX ix_job_output_place",
                "CREATE INDEX ix_job_output_place ON job (output_place)",
            ],
            ["DROP INDEX ix_job_output_place", "CREATE UNIQUE INDEX ix_x ON job (output_place)"],
            "table job has no unique index on output_place",
        ),
        (
            ["ALTER TABLE job ADD COLUMN colour TEXT NOT NULL DEFAULT ''"],
            ["ALTER TABLE job ADD COLUMN colour TEXT NOT NULL"],
            None,
        ),
    ],
    ids=["type", "may be null", "may not be null", "no unique index", "another index", "must be given"],
)
def test_each_kind_of_difference_is_named(
    own_database: Database, sqlite: list[str], postgresql: list[str], says: str | None
) -> None:
    change(own_database, *(sqlite if own_database.is_sqlite else postgresql))

    if own_database.is_sqlite and says is None:
        check_schema(own_database)  # SQLite adds no such column without a default
        return
    assert (says or "column job.colour, unknown to this version, must be given a value") in difference_of(
        own_database
    )


def test_what_is_there_besides_and_wider_types_are_no_difference(own_database: Database) -> None:
    change(own_database, "ALTER TABLE job ADD COLUMN colour TEXT", "CREATE TABLE colour (name TEXT NOT NULL)")
    if not own_database.is_sqlite:
        change(
            own_database,
            "ALTER TABLE job ALTER COLUMN state TYPE VARCHAR(200)",
            "ALTER TABLE job ALTER COLUMN priority TYPE TEXT",
            "ALTER TABLE shard ALTER COLUMN term TYPE BIGINT",
        )

    check_schema(own_database)


def test_a_later_release_may_relax_what_this_one_knows(own_database: Database) -> None:
    change(own_database, "DROP INDEX ix_job_output_place", "UPDATE alembic_version SET version_num = '9999'")

    check_schema(own_database)


def test_a_migration_that_ends_during_the_look_is_no_difference(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look reads the revision before it reads the columns."""
    from nightshift.store.databases import migrate

    revisions = iter(["0043-before"])
    real = migrate._revision
    monkeypatch.setattr(migrate, "_revision", lambda connection: next(revisions, None) or real(connection))
    change(own_database, "ALTER TABLE job ADD COLUMN colour TEXT")

    check_schema(own_database)


def test_a_migration_under_way_holds_up_no_look(own_database: Database) -> None:
    def look_meanwhile(connection: object) -> None:
        connection.execute(text("ALTER TABLE job ADD COLUMN colour TEXT"))  # type: ignore[attr-defined]
        check_schema(own_database)

    change_schema(own_database, look_meanwhile)


# -- PostgreSQL ----------------------------------------------------------------------------------------


def test_a_column_that_is_too_short_is_named(postgresql_server: PostgresServer) -> None:
    database = own_postgresql(postgresql_server, "short")
    upgrade(database)
    change(database, "ALTER TABLE job ALTER COLUMN state TYPE VARCHAR(3)")

    assert "column job.state is VARCHAR(3) instead of VARCHAR(" in difference_of(database)
    database.close()


def test_a_table_that_may_not_be_written_is_named(postgresql_server: PostgresServer) -> None:
    owner = own_postgresql(postgresql_server, "owned")
    upgrade(owner)
    change(
        owner,
        "CREATE ROLE reader LOGIN PASSWORD 'reader'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    url = create_engine(postgresql_server.url("owned")).url.set(username="reader", password="reader")
    reader = Database(url.render_as_string(hide_password=False))

    assert "may not be read and written by this user" in difference_of(reader)
    with pytest.raises(DatabaseUnusable, match="permission denied"):
        planned(Store(reader))
    reader.close()
    owner.close()


def test_a_database_of_another_encoding_is_named(postgresql_server: PostgresServer) -> None:
    database = own_postgresql(postgresql_server, "latin", "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")

    with pytest.raises(DatabaseUnusable, match="the database's encoding is LATIN1 instead of UTF8"):
        upgrade(database)
    database.close()


def own_postgresql(server: PostgresServer, name: str, options: str = "") -> Database:
    """A new, empty database."""
    engine = create_engine(server.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    engine.dispose()
    return Database(server.url(name))


# -- errors that stay -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM no_such_table",
        "SELECT no_such_column FROM job",
        "INSERT INTO job (no_such_column) VALUES (1)",
        "INSERT INTO counter (name, value) VALUES ('x', 1) ON CONFLICT (value) DO NOTHING",
    ],
)
def test_what_the_database_does_not_have_is_no_outage(own_database: Database, statement: str) -> None:
    with (
        pytest.raises(DatabaseUnusable, match="The database cannot be used: "),
        own_database.write() as connection,
    ):
        connection.execute(text(statement))


def test_a_file_that_may_not_be_written_is_no_outage(sqlite_template: Path) -> None:
    database = Database(f"sqlite:///file:{sqlite_template}?mode=ro&uri=true")

    with pytest.raises(DatabaseUnusable, match=r"readonly.*: see that"), database.write() as connection:
        connection.execute(text("DELETE FROM counter"))
    database.close()


@pytest.mark.parametrize("locked", ["nightshift.db", "."])
def test_a_file_or_folder_that_can_only_be_read_is_refused_before_there_is_work(
    locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode of a file does not keep root from it, so the kernel's answer is replaced."""
    database = Database(f"sqlite:///{tmp_path / 'nightshift.db'}")
    upgrade(database)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / locked and may(path, mode))

    assert difference_of(database).startswith("The database may only be read: see that this user may write")
    database.close()


def test_a_file_that_cannot_be_opened_is_said_at_once_with_the_next_step(tmp_path: Path) -> None:
    """As in a folder on a read-only file system: waiting, as for another process's lock, helps nothing."""
    path = tmp_path / "nightshift.db"
    first = Database(f"sqlite:///{path}")
    upgrade(first)
    first.close()
    (tmp_path / f"{path.name}-wal").mkdir()
    database = Database(f"sqlite:///{path}", busy_timeout_s=3_600)

    with pytest.raises(DatabaseUnavailable, match="unable to open database file: see that"), database.read():
        pass
    database.close()


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_file_that_is_no_database_is_no_outage(tmp_path: Path, size: int) -> None:
    path = tmp_path / "nightshift.db"
    path.write_bytes(b"no database " * size)
    database = Database(f"sqlite:///{path}")

    with pytest.raises(DatabaseUnusable, match="not a database: name another file"), database.read():
        pass
    database.close()


def test_a_file_that_was_damaged_is_no_outage(sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "nightshift.db"
    content = bytearray(sqlite_template.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    database = Database(f"sqlite:///{path}")

    with pytest.raises(DatabaseUnusable, match="malformed: restore a backup"), database.read() as connection:
        connection.execute(text("SELECT * FROM job")).all()
    database.close()


def test_a_server_that_only_reads_may_be_replaced_by_one_that_writes(
    postgresql_server: PostgresServer,
) -> None:
    """As after a failover, an error that goes away: another address is tried again."""
    database = Database(f"{postgresql_server.url()}&options=-c%20default_transaction_read_only%3Don")

    with pytest.raises(DatabaseUnavailable, match="read-only"), database.write() as connection:
        connection.execute(text("CREATE TABLE written (name TEXT)"))
    database.close()
