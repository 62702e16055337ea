"""Connections to an SQLite file.

It is in WAL mode with `synchronous=FULL`, except in transactions that need not be durable. Writing
transactions begin IMMEDIATE: a reader that upgrades to a writer fails at once, whatever the busy timeout.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL

from nightshift.store.databases import failures

_LOCKED_RETRY_S: Final = 0.01
# julianday is a double, good to about 0.05 ms at this epoch.
_NOW_MS: Final = text("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")


def engine(url: URL, pool_size: int, busy_timeout_s: float) -> Engine:
    created = create_engine(
        url,
        hide_parameters=True,  # they hold prompts, and errors are logged
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_use_lifo=True,  # the most recently used has warm caches
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
    )
    event.listen(created, "connect", partial(_prepare_sqlite, busy_timeout_s))
    event.listen(created, "begin", _begin_sqlite)
    return created


def _prepare_sqlite(busy_timeout_s: float, connection: Any, record: Any) -> None:
    connection.isolation_level = None  # BEGIN is sent explicitly
    _write_ahead(connection, busy_timeout_s)
    connection.execute("PRAGMA foreign_keys=ON")


def _write_ahead(connection: Any, busy_timeout_s: float) -> None:
    """Sets WAL mode, which the file keeps. Retried: SQLite's busy timeout does not cover another process that
    is writing to a new file.
    """
    ends_s = monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not failures.is_busy(error) or monotonic() >= ends_s:
                raise
        sleep(_LOCKED_RETRY_S)


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("nightshift_reads_only", False):
        connection.exec_driver_sql("BEGIN")
        return
    synchronous = "FULL" if options.get("nightshift_durable", True) else "NORMAL"
    if connection.info.get("synchronous") != synchronous:
        connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        connection.info["synchronous"] = synchronous
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def now_ms(connection: Connection) -> int:
    """The database's time in milliseconds since 1970."""
    return int(connection.execute(_NOW_MS).scalar_one())


@contextmanager
def without_limits(connection: Connection) -> Iterator[None]:
    """Does nothing: statements have no limit here."""
    yield
