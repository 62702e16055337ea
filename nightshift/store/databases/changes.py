"""Detects commits without a query of the tables.

SQLite counts other connections' commits (`PRAGMA data_version`). PostgreSQL names the transactions that a
snapshot sees, for the whole server: another database's commits count as changes, and no change is missed.
"""

from typing import Any, Final

from sqlalchemy import PoolProxiedConnection

from nightshift.errors import DatabaseUnavailable
from nightshift.store.databases.database import Database

_VERSION: Final = {
    "sqlite": "PRAGMA data_version",
    "postgresql": "SELECT CAST(pg_current_snapshot() AS TEXT)",
}


class Changes:
    """Holds one connection that only reads. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statement = _VERSION[database.dialect]
        self._connection: PoolProxiedConnection | None = None
        self._version: object = None

    def seen(self) -> bool:
        """Whether there may be commits since the last call; True at first and after an outage. Raises
        DatabaseUnavailable.
        """
        try:
            version = self._read_version()
        except self._database.driver_error as error:
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
