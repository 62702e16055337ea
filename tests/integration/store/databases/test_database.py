"""The promises of a transaction, SQLite's settings, and the errors of a database that is away."""

import sqlite3
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import exc, text

from nightshift.errors import ConfigurationError, DatabaseUnavailable, DatabaseUnusable
from nightshift.jobs import JobKind
from nightshift.process.settings import DataSettings
from nightshift.store import Store, open_database
from nightshift.store.databases.database import Database
from tests.helpers.fakes import FakeClock, submit
from tests.integration.servers import PostgresServer
from tests.integration.store.racing import WAIT_MAX_S

# In a process of its own, which finds no psycopg.
ON_SQLITE_ALONE = """
import sys
sys.modules["psycopg"] = None
import api.app, scheduler.__main__, workers.composition, nightshift.cli.main
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
database = Database(f"sqlite:///{sys.argv[1]}")
upgrade(database)
store = Store(database)
with store.transaction() as tx:
    tx.counters.add("commits", 1)
assert store.changes().seen()
try:
    Database("postgresql://somewhere/nightshift")
except Exception as error:
    print(type(error).__name__, error)
"""


class Interrupted(Exception):
    pass


def test_a_transaction_that_raises_leaves_nothing_behind(store: Store) -> None:
    def submit_two_and_fail() -> None:
        with store.transaction() as tx:
            for tenant in ("a", "b"):
                tx.keys.keep_webhook_secret(tenant, b"secret", tx.now())
            raise Interrupted

    with pytest.raises(Interrupted):
        submit_two_and_fail()

    with store.snapshot() as tx:
        assert tx.keys.webhook_secret("a") is None


def test_without_a_clock_of_its_own_the_time_is_the_databases(database: Database) -> None:
    now = Store(database).now()

    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)  # both clocks are this machine's


def test_time_passes_within_a_transaction(database: Database) -> None:
    with Store(database).transaction() as tx:
        first = tx.now()
        while tx.now() == first:
            pass


@pytest.mark.parametrize(
    "url",
    [
        "mysql://root@127.0.0.1/nightshift",
        "nightshift.db",
        "",
        "postgresql://db:port/nightshift",
        "postgresql+psycopg2://db/nightshift",
        "sqlite+aiosqlite:///nightshift.db",
        "sqlite://nightshift.db",
    ],
)
def test_a_database_we_cannot_use_is_a_mistake_in_the_configuration(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Database(url)

    assert raised.value.param == "DATABASE_URL"


def test_a_postgresql_that_is_away_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql://postgres@/postgres?host={tmp_path}")

    with pytest.raises(DatabaseUnavailable, match="cannot be used right now"):
        Store(database).now()


def test_a_connection_that_was_cut_off_fails_its_transaction_and_no_later_one(
    postgresql_database: Database, clock: FakeClock
) -> None:
    store = Store(postgresql_database, clock=clock)

    def be_cut_off() -> None:
        with postgresql_database.write() as connection:
            backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with postgresql_database.write() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
            connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        be_cut_off()

    submit(store)


def test_connections_that_were_cut_off_while_idle_are_replaced_unnoticed(
    postgresql_server: PostgresServer, postgresql_database: Database, clock: FakeClock
) -> None:
    """A restarted PostgreSQL costs the transactions it interrupted, and not one per pooled connection."""
    store = Store(postgresql_database, clock=clock)
    submit(store)
    outsider = Database(postgresql_server.url())
    with outsider.write() as connection:
        others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        connection.execute(text(f"{others} AND backend_type = 'client backend'"))
    outsider.close()

    submit(store)


def test_the_default_database_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / "made" / "on demand"
    database = open_database(DataSettings(data_dir=data_dir, _env_file=None))

    Store(database).now()
    database.close()

    assert (data_dir / "nightshift.db").exists()
    assert data_dir.stat().st_mode & 0o077 == 0


# -- PostgreSQL ----------------------------------------------------------------------------------------


def test_postgresql_waits_for_the_disk_but_for_what_is_redone(postgresql_database: Database) -> None:
    """One after the other they use the same connection."""

    def waits(**options: bool) -> str:
        with postgresql_database.write(**options) as connection:
            assert abs(postgresql_database.now(connection) - datetime.now(UTC)) < timedelta(hours=1)
            return str(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    in_turn = ({}, {"redone": True}, {"redone": True}, {"durable": False}, {})
    assert [waits(**options) for options in in_turn] == ["on", "off", "off", "on", "on"]


# -- SQLite --------------------------------------------------------------------------------------------


def test_sqlite_keeps_accepted_work_through_a_power_cut(sqlite_database: Database) -> None:
    with sqlite_database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }

    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_sqlite_waits_for_the_disk_but_where_it_need_not(sqlite_database: Database) -> None:
    """One after the other they use the same connection."""

    def synchronous(*, durable: bool) -> int:
        with sqlite_database.write(durable=durable) as connection:
            return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    full, normal = 2, 1
    assert [synchronous(durable=durable) for durable in (True, False, False, True)] == [
        full,
        normal,
        normal,
        full,
    ]


def test_a_reader_does_not_wait_for_a_writer(sqlite_database: Database, clock: FakeClock) -> None:
    store = Store(sqlite_database, clock=clock)
    job = submit(store)

    with store.transaction() as tx:
        tx.jobs.record_page(job.id, 0, model="demo", rows_total=1, rows_estimated=None, now=tx.now())
        with store.snapshot() as reader:
            assert reader.jobs.fetch(job.id).planned_at is None


def test_a_writer_takes_its_turn_before_it_reads(sqlite_database: Database, clock: FakeClock) -> None:
    """BEGIN IMMEDIATE: a transaction that read first and wrote later would fail, however long it may wait."""
    store = Store(sqlite_database, clock=clock)
    second_begins = threading.Event()

    def second() -> int:
        second_begins.set()
        with store.transaction() as tx:
            length = tx.outbox.length()
            tx.outbox.add(JobKind.BULK, 1, tx.now())
            return length

    with ThreadPoolExecutor(1) as thread:
        with store.transaction() as tx:
            waiting = thread.submit(second)
            assert second_begins.wait(WAIT_MAX_S)
            tx.outbox.add(JobKind.BULK, 1, tx.now())

        assert waiting.result(WAIT_MAX_S) == 1


def test_opening_a_new_file_waits_while_another_makes_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is not in WAL mode yet, and SQLite lets no busy timeout wait for that change."""
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE first (id INTEGER)")
    monkeypatch.setattr("nightshift.store.databases.sqlite.sleep", lambda seconds: other.execute("COMMIT"))
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")

    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM first")).scalar_one() == 0
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"

    database.close()
    other.close()


def test_a_new_file_that_another_keeps_locked_is_given_up_in_time(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    database = Database(f"sqlite:///{tmp_path / 'new.db'}", busy_timeout_s=0.05)

    with pytest.raises(DatabaseUnavailable, match="locked"), database.write():
        pass

    database.close()
    other.close()


def test_a_writer_that_waits_for_too_long_is_told(sqlite_template: Path) -> None:
    impatient = Database(f"sqlite:///{sqlite_template}", busy_timeout_s=0.05)
    patient = Database(f"sqlite:///{sqlite_template}")

    def write() -> None:
        with impatient.write():
            pass

    with patient.write():
        with pytest.raises(DatabaseUnavailable, match="locked"):
            write()
    write()

    impatient.close()
    patient.close()


@pytest.mark.parametrize(
    ("before", "statement", "error"),
    [
        ("SELECT 1", "SELECT :said FROM no_such_table", DatabaseUnusable),
        (
            "CREATE TEMPORARY TABLE said (what TEXT CHECK (what = ''))",
            "INSERT INTO said VALUES (:said)",
            exc.IntegrityError,
        ),
    ],
    ids=["what a statement carried", "the row that a constraint refuses"],
)
def test_an_error_does_not_quote(
    database: Database, before: str, statement: str, error: type[Exception]
) -> None:
    prompt = "-".join(("a", "marked", "prompt"))

    def fail() -> None:
        with database.write() as connection:
            connection.execute(text(before))
            connection.execute(text(statement), {"said": prompt})

    with pytest.raises(error) as failed:
        fail()
    assert prompt not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("type", ["integer", "json"])
def test_an_error_does_not_quote_a_value_that_is_invalid(postgresql_database: Database, type: str) -> None:
    prompt = "-".join(("a", "marked", "prompt"))

    with pytest.raises(exc.DataError) as failed, postgresql_database.read() as connection:
        connection.execute(text(f"SELECT CAST(CAST(:said AS text) AS {type})"), {"said": prompt})

    shown = "".join(traceback.format_exception(failed.value))
    assert prompt not in shown
    assert "a value is invalid" in shown


def test_an_installation_on_sqlite_needs_no_psycopg_and_one_on_postgresql_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_SQLITE_ALONE, str(tmp_path / "nightshift.db")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("ConfigurationError NIGHTSHIFT_DATABASE_URL names PostgreSQL, which needs")
    assert "pip install 'psycopg[binary]'" in ended.stdout
