"""Connections and transactions on SQLite or PostgreSQL, and the only clock that counts: the database's.

SQLite runs in WAL mode with `synchronous=FULL` (accepted work survives a power cut), and every writing
transaction begins IMMEDIATE: a reader that upgrades to a writer fails at once whatever the busy timeout.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, exc, text
from sqlalchemy.engine import URL, make_url

from nightshift.errors import ConfigurationError, DatabaseUnavailable
from nightshift.store.tables import from_ms

log = logging.getLogger(__name__)

_LOCKED_RETRY_S: Final = 0.01

_NOW_MS = {
    # julianday is a double: good to about 0.05 ms at this epoch.
    "sqlite": text("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"),
    # clock_timestamp moves within a transaction; now() would be frozen at its start.
    "postgresql": text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"),
}


class Database:
    """One database by URL. Thread-safe; every transaction uses a connection of its own."""

    def __init__(self, url: str, *, pool_size: int = 10, busy_timeout_s: float = 15.0) -> None:
        """Connects lazily. Raises ConfigurationError if the URL is not one of a supported database."""
        parsed = _parse(url)
        self.dialect = parsed.get_backend_name()
        self._engine = _engine(parsed, pool_size, busy_timeout_s)

    @property
    def is_sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write. Commits at the end, rolls back on an exception.

        Raises DatabaseUnavailable when the database cannot be reached or stays locked.
        """
        with self._mapped(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads. On SQLite it never waits for a writer."""
        with self._mapped(), self._engine.connect() as connection:
            with connection.execution_options(nightshift_reads_only=True).begin():
                yield connection

    def now(self, connection: Connection) -> datetime:
        """The database's time, aware, UTC, in milliseconds."""
        return from_ms(int(connection.execute(_NOW_MS[self.dialect]).scalar_one()))

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise DatabaseUnavailable(f"The database cannot be used right now: {reason}") from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise ConfigurationError(
            "NIGHTSHIFT_DATABASE_URL is not a database URL", param="DATABASE_URL"
        ) from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in _NOW_MS:
        raise ConfigurationError(
            f"NIGHTSHIFT_DATABASE_URL names {parsed.get_backend_name()!r}; use sqlite:/// or postgresql://",
            param="DATABASE_URL",
        )
    return parsed


def _engine(url: URL, pool_size: int, busy_timeout_s: float) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(url, pool_size=pool_size, max_overflow=pool_size, pool_pre_ping=True)
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
    )
    event.listen(engine, "connect", partial(_prepare_sqlite, busy_timeout_s))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(busy_timeout_s: float, connection: Any, record: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    _write_ahead(connection, busy_timeout_s)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: Any, busy_timeout_s: float) -> None:
    """Put the file into WAL mode, in which it then stays. While somebody writes to a new file this fails at
    once, because SQLite's own busy timeout does not wait for it."""
    ends_s = monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if monotonic() >= ends_s:
                raise
        sleep(_LOCKED_RETRY_S)


def _begin_sqlite(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get("nightshift_reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")
