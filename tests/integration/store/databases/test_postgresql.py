"""A database that does not answer, answers late, or refuses: what it costs, and that no caller waits long."""

import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, make_url, text

from nightshift.errors import Conflicted, DatabaseUnavailable
from nightshift.process.settings import DataSettings
from nightshift.store import TRIES_MAX, Store, Transaction, open_database
from nightshift.store.databases import postgresql
from nightshift.store.databases.database import Database
from tests.helpers.fakes import planned
from tests.integration.servers import HOST, PostgresServer
from tests.integration.store.racing import WAIT_MAX_S, at_once, in_background
from tests.integration.store.watching import counters

TIMEOUT_S = 0.3


@pytest.fixture
def impatient(postgresql_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Waits hardly longer than the server takes; each connection is in use once at a time."""
    monkeypatch.setattr(postgresql, "GRACE_S", 0.0)
    database = Database(postgresql_server.url(), timeout_s=TIMEOUT_S)
    yield database
    database.close()


def backend_of(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """The kernel goes on acknowledging what is sent to it; no process reads it."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_server_that_falls_silent_in_a_transaction_is_not_waited_for(impatient: Database) -> None:
    silent, heard = threading.Event(), threading.Event()
    backend: list[int] = []

    def ask() -> None:
        with impatient.write() as connection:
            backend.append(backend_of(connection))
            heard.set()
            assert silent.wait(WAIT_MAX_S)
            connection.execute(text("SELECT 1"))

    with in_background(ask) as asking:
        assert heard.wait(WAIT_MAX_S)
        with frozen(backend[0]):
            silent.set()
            with pytest.raises(DatabaseUnavailable, match="no answer"):
                asking.result(WAIT_MAX_S)


def test_a_connection_that_fell_silent_while_idle_is_replaced_unnoticed(
    impatient: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "HEARD_LATELY_S", 0.0)
    with impatient.read() as connection:
        backend = backend_of(connection)

    def ask() -> int:
        with impatient.read() as connection:
            return backend_of(connection)

    with frozen(backend), in_background(ask) as asking:
        assert asking.result(WAIT_MAX_S) != backend


def test_a_server_is_not_asked_again_whether_it_is_there_until_it_may_have_gone(
    postgresql_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = conninfo(postgresql_server)
    with postgresql.ServerConnection.connect(where, autocommit=True) as connection:
        connection.execute("SELECT 1")
        assert connection.was_heard_lately()

        with monkeypatch.context() as later:
            later.setattr(postgresql, "HEARD_LATELY_S", 0.0)
            assert not connection.was_heard_lately(), "it is a long time ago"

        with psycopg.connect(where, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
        assert not connection.was_heard_lately(), "it has said goodbye"

        connection.close()
        assert not connection.was_heard_lately()


def test_a_transaction_that_wants_to_know_the_time_first_has_been_told(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = postgresql.ServerConnection.wait

    def counted(connection: postgresql.ServerConnection, *arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return wait(connection, *arguments, **options)

    with postgresql_database.read() as connection:
        early = postgresql_database.now(connection)
    monkeypatch.setattr(postgresql.ServerConnection, "wait", counted)
    with postgresql_database.read() as connection:
        first = postgresql_database.now(connection)
        assert waits == 1, "BEGIN"
        while postgresql_database.now(connection) == first:
            pass
        assert waits > 1
    with postgresql_database.read() as connection:
        waits = 0
        connection.execute(text("SELECT pg_sleep(0.01)"))
        late = postgresql_database.now(connection)
        assert waits == 2, "what was told at the beginning is too old by now"
    assert early <= first < late


def test_a_server_that_takes_a_connection_and_says_nothing_is_not_waited_for() -> None:
    with socket.create_server((HOST, 0)) as silent_server:
        url = f"postgresql://postgres@{HOST}:{silent_server.getsockname()[1]}/postgres?connect_timeout=2"
        database = Database(url)

        with in_background(lambda: Store(database).now()) as asking, pytest.raises(DatabaseUnavailable):
            asking.result(WAIT_MAX_S)


def test_a_statement_that_takes_too_long_is_ended_by_the_server(postgresql_server: PostgresServer) -> None:
    """It holds no lock that another transaction waits for, and its connection is as good as before."""
    database = open_database(
        DataSettings(database_url=postgresql_server.url(), database_timeout_s=2.0, _env_file=None)
    )  # a busy machine may take long from BEGIN to the statement

    def sleep() -> None:
        with database.write() as connection:
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        sleep()
    with database.write() as connection:
        connection.execute(text("SELECT 1"))
    database.close()


def test_a_transaction_whose_owner_fell_silent_lets_go_of_its_locks(impatient: Database) -> None:
    ended = threading.Event()

    def dawdle() -> None:
        with impatient.write() as connection:
            owner = backend_of(connection)
            while is_alive(impatient, owner):
                ended.wait(0.02)  # the server ends it without a message
            connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        dawdle()


def is_alive(database: Database, backend: int) -> bool:
    alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    with database.read() as connection:
        return bool(connection.execute(alive, {"pid": backend}).scalar_one())


def test_no_statement_is_sent_in_parts_between_which_its_owner_could_vanish(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server waits for ever in the middle of psycopg's `executemany`, and keeps all locks."""

    def in_parts(*arguments: object, **options: object) -> None:
        raise AssertionError("in parts")

    monkeypatch.setattr(psycopg.Cursor, "executemany", in_parts)
    store = Store(postgresql_database)
    job = planned(store, shards=3)

    with store.snapshot() as tx:
        assert len(tx.shards.of_job(job.id, limit=10)) == 3


def test_a_change_to_the_schema_takes_as_long_as_it_takes(postgresql_server: PostgresServer) -> None:
    timeout_s = 1.0  # a busy machine may take long to lift the limits, too
    with closing(Database(postgresql_server.url(), timeout_s=timeout_s)) as database:
        with database.write_at_leisure() as connection:
            connection.execute(text("SELECT pg_sleep(:s)"), {"s": 1.2 * timeout_s})

        with pytest.raises(DatabaseUnavailable), database.write() as connection:
            connection.execute(text("SELECT pg_sleep(:s)"), {"s": 1.2 * timeout_s})


def test_options_in_the_url_are_kept_and_go_before_ours(postgresql_server: PostgresServer) -> None:
    url = f"{postgresql_server.url()}&options=-c%20work_mem%3D123kB%20-c%20statement_timeout%3D7000"
    database = Database(url, timeout_s=TIMEOUT_S)

    with database.read() as connection:
        shown = [
            connection.execute(text(f"SHOW {name}")).scalar_one() for name in ("work_mem", "lock_timeout")
        ]
        assert shown == ["123kB", "300ms"]
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "7s"
    database.close()


def test_more_transactions_than_connections_wait_no_longer_than_for_an_answer(
    postgresql_server: PostgresServer,
) -> None:
    database = Database(postgresql_server.url(), pool_size=1, timeout_s=TIMEOUT_S)  # and one in reserve

    with suppress(DatabaseUnavailable), database.read(), database.read():  # they take too long themselves
        with pytest.raises(DatabaseUnavailable, match="in use"), database.read():
            pass
    database.close()


def test_after_a_failover_the_server_that_may_not_write_any_more_is_left(
    postgresql_server: PostgresServer,
) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    administer(postgresql_server, f"CREATE DATABASE {name}")
    administer(postgresql_server, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = Database(postgresql_server.url(name))

    def write() -> None:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE written (id INTEGER)"))

    with pytest.raises(DatabaseUnavailable, match="read-only"):
        write()
    administer(
        postgresql_server, f"ALTER DATABASE {name} RESET default_transaction_read_only"
    )  # of new connections

    write()
    database.close()


def conninfo(server: PostgresServer) -> str:
    url = make_url(server.url())
    return make_conninfo(host=url.query["host"], user=url.username, dbname=url.database)


def administer(server: PostgresServer, statement: LiteralString) -> None:
    """Runs a statement that PostgreSQL takes outside transactions only."""
    with psycopg.connect(conninfo(server), autocommit=True) as connection:
        connection.execute(statement)


# -- giving way to others ------------------------------------------------------------------------------


def fail_with(tx: Transaction, sqlstate: str) -> None:
    statement = f"DO $$ BEGIN RAISE EXCEPTION 'chosen against' USING ERRCODE = '{sqlstate}'; END $$"
    tx._connection.execute(text(statement))


@pytest.mark.parametrize(
    ("sqlstate", "failures", "error"),
    [
        ("40001", TRIES_MAX - 1, None),
        ("40P01", TRIES_MAX - 1, None),
        ("40001", TRIES_MAX, Conflicted),
        ("57P01", 1, DatabaseUnavailable),
    ],
    ids=["a serialization failure", "a deadlock", "one too many", "no conflict"],
)
def test_a_transaction_that_gave_way_is_run_again_so_often(
    postgresql_database: Database, sqlstate: str, failures: int, error: type[Exception] | None
) -> None:
    store, tries = Store(postgresql_database), []

    def work(tx: Transaction) -> None:
        tries.append(1)
        tx.keys.keep_webhook_secret("a", b"secret", tx.now())
        if len(tries) <= failures:
            fail_with(tx, sqlstate)

    with nullcontext() if error is None else pytest.raises(error):
        store.run(work)
    assert len(tries) == (failures if error else failures + 1)
    with store.snapshot() as tx:
        assert tx.keys.webhook_secret("a") == (None if error else b"secret")


def test_two_that_would_wait_for_each_other_both_get_through(postgresql_database: Database) -> None:
    store = Store(postgresql_database)
    with store.transaction() as tx:
        for name in ("left", "right"):
            tx.counters.add(name, 1)
    both_hold_one = threading.Barrier(2)

    def count(first: str, second: str) -> None:
        tries: list[int] = []

        def work(tx: Transaction) -> None:
            tries.append(1)
            tx.counters.add(first, 1)
            if len(tries) == 1:
                both_hold_one.wait(WAIT_MAX_S)
            tx.counters.add(second, 1)

        store.run(work)

    at_once(lambda: count("left", "right"), lambda: count("right", "left"))

    assert counters(store) == {"left": 3, "right": 3}
