"""Whether anything was committed to a database since the last look, without a query of its tables.

SQLite counts the commits of other connections (`PRAGMA data_version`), which costs microseconds. PostgreSQL
names the transactions that a snapshot sees: two snapshots of the same name see the same data. That is true of
the whole server, so work in another database of it counts as a change; no change is ever missed.
"""

import sqlite3
from typing import Any, Final

import psycopg
from sqlalchemy import PoolProxiedConnection

from nightshift.errors import DatabaseUnavailable
from nightshift.store.databases.database import Database

_VERSION: Final = {
    "sqlite": "PRAGMA data_version",
    "postgresql": "SELECT CAST(pg_current_snapshot() AS TEXT)",
}


class Changes:
    """Holds one connection, on which nothing is written. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statement = _VERSION[database.dialect]
        self._connection: PoolProxiedConnection | None = None
        self._version: object = None

    def seen(self) -> bool:
        """Whether there may have been commits since the last call: True for the first one, and for the first
        one after the database was away. Raises DatabaseUnavailable.
        """
        try:
            version = self._read_version()
        except (sqlite3.Error, psycopg.Error) as error:
            self._disconnect()
            raise DatabaseUnavailable(f"The database cannot be used right now: {error}") from error
        is_new, self._version = version != self._version, version
        return is_new

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_version(self) -> object:
        if self._connection is None:
            self._version = None
            self._connection = self._database.connect()
        ours: Any = self._connection.dbapi_connection
        return ours.execute(self._statement).fetchone()[0]

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection = None
