"""Transactions on SQLite or PostgreSQL, the database's clock, and the steps that all statements share."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Insert,
    PoolProxiedConnection,
    Row,
    Select,
    Tuple,
    UpdateBase,
    bindparam,
    exc,
    tuple_,
)
from sqlalchemy.engine import URL, make_url

from nightshift.errors import ConfigurationError, DatabaseUnavailable, DatabaseUnusable
from nightshift.store.databases import failures, sqlite
from nightshift.store.tables import from_ms

T = TypeVar("T")

log = logging.getLogger(__name__)

_DRIVERS: Final = frozenset({"sqlite", "sqlite+pysqlite", "postgresql+psycopg"})


class Database:
    """One database by URL. Thread-safe; every transaction has its own connection."""

    def __init__(
        self, url: str, *, pool_size: int = 10, busy_timeout_s: float = 15.0, timeout_s: float = 10.0
    ) -> None:
        """Connects lazily. Raises ConfigurationError for an unsupported URL, and DatabaseUnusable for a path
        that is no file's.

        `busy_timeout_s`: for SQLite's lock. `timeout_s`: per PostgreSQL statement.
        """
        parsed = _parse(url)
        self.dialect = parsed.get_backend_name()
        self.is_sqlite = self.dialect == "sqlite"
        self.place = place_of(parsed)
        path = Path(self.place)
        if self.is_sqlite and self.place and path.exists() and not path.is_file():
            what = "a directory" if path.is_dir() else "a device, pipe or socket"
            raise DatabaseUnusable(
                f"{path} is {what}, and the database is a file: move it away, or name a file in "
                "NIGHTSHIFT_DATABASE_URL"
            )
        self._now_ms, self._without_limits = sqlite.now_ms, sqlite.without_limits
        if self.is_sqlite:
            self._engine = sqlite.engine(parsed, pool_size, busy_timeout_s)
            return
        try:  # not above: an installation on SQLite runs without psycopg
            from nightshift.store.databases import postgresql
        except ImportError as error:
            raise ConfigurationError(
                f"NIGHTSHIFT_DATABASE_URL names PostgreSQL, which needs psycopg: {error}; "
                "pip install 'psycopg[binary]'",
                param="DATABASE_URL",
            ) from error
        self._engine = postgresql.engine(parsed, pool_size, timeout_s)
        self._now_ms, self._without_limits = postgresql.now_ms, postgresql.without_limits

    @property
    def is_missing(self) -> bool:
        """Whether it is an SQLite file that the first connection would create."""
        path = self._engine.url.database
        return self.is_sqlite and path is not None and not Path(path).exists()

    @property
    def is_locked_away(self) -> bool:
        """Whether it is an SQLite file that this user, or the file system, keeps from being changed."""
        path = Path(self._engine.url.database or "")
        may_write = all(os.access(place, os.W_OK) for place in (path, path.parent))
        return self.is_sqlite and path.exists() and not may_write

    @contextmanager
    def write(self, *, durable: bool = True, redone: bool = False) -> Iterator[Connection]:
        """A transaction that may write. Commits at its end, rolls back on an exception.

        Without `durable`, SQLite does not wait for the disk: a power failure may undo the transaction and
        later ones that are not durable either. PostgreSQL's are always durable: other machines would remember
        what it forgets.

        `redone`: not durable on either. Only for what is done again from what the database then says, and
        what no process acts on outside of the database but after a later durable transaction, which keeps it.

        Raises DatabaseUnavailable when the database is unreachable, locked or silent, Conflicted when it
        chose another transaction, and DatabaseUnusable when no retry helps.
        """
        with self._mapped(), self._engine.connect() as connection:
            options = {"nightshift_durable": durable and not redone, "nightshift_redone": redone}
            with connection.execution_options(**options).begin():
                yield connection

    @contextmanager
    def write_at_leisure(self) -> Iterator[Connection]:
        """A transaction like `write`, without a limit on statements, for schema changes."""
        with self.write() as connection:
            with self._without_limits(connection):
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads; on SQLite it never waits for a writer."""
        with self._mapped(), self._engine.connect() as connection:
            with connection.execution_options(nightshift_reads_only=True).begin():
                yield connection

    def connect(self) -> PoolProxiedConnection:
        """A connection in autocommit mode with the driver's own errors; the caller closes it. Raises
        DatabaseUnavailable.
        """
        with self._mapped():
            return self._engine.raw_connection()

    def now(self, connection: Connection) -> datetime:
        """The database's time, aware, UTC, in milliseconds."""
        return from_ms(self._now_ms(connection))

    @property
    def driver_error(self) -> type[Exception]:
        """The class of the driver's own errors, on connections of `connect`."""
        return self._engine.dialect.loaded_dbapi.Error

    def server_version(self) -> str:
        """The server's name and version, such as `postgresql 17.2`. Raises DatabaseUnavailable."""
        with self.read() as connection:
            version = connection.dialect.server_version_info or ()
            return f"{self.dialect} {'.'.join(map(str, version))}".rstrip()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except exc.TimeoutError as error:
            raise DatabaseUnavailable("All connections to the database are in use.") from error
        except exc.DBAPIError as error:
            kind = failures.kind_of(error)
            if kind is None:
                raise
            when = "" if kind is DatabaseUnusable else " right now"
            where = f" ({self.place})" if self.is_sqlite else ""
            raise kind(f"The database cannot be used{when}: {failures.reason_of(error)}{where}") from error


class Statements:
    """The statements about one noun, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._execute = connection.execute

    def _one(self, wanted: Select[Any], converted: Callable[[Row[Any]], T]) -> T | None:
        row = self._connection.execute(wanted).one_or_none()
        return None if row is None else converted(row)

    def _all(self, wanted: Executable, converted: Callable[[Row[Any]], T]) -> list[T]:
        return [converted(row) for row in self._connection.execute(wanted)]

    def _inserts(self, new: Insert) -> bool:
        """Whether no row is in the way of this one. The transaction goes on either way."""
        try:
            with self._connection.begin_nested():
                self._connection.execute(new)
        except exc.IntegrityError:
            return False
        return True

    def _changes_one(self, change: UpdateBase, values: Mapping[str, Any] | None = None) -> bool:
        """Whether a change found its row as its WHERE demands."""
        return self._connection.execute(change, values).rowcount == 1


def from_row(kind: type[T], row: Row[Any], /, **converted: Any) -> T:
    """An object whose fields are the row's columns of the same names, but for those that are converted."""
    shared = _shared(kind, row._fields)  # type: ignore[arg-type]
    return kind(**{name: row[place] for name, place in shared} | converted)


@cache
def _shared(kind: type, columns: tuple[str, ...]) -> Sequence[tuple[str, int]]:
    """The fields that have a column, with its place in a row."""
    return [(name, columns.index(name)) for name in kind.__dataclass_fields__ if name in columns]  # type: ignore[attr-defined]


def position(columns: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> Tuple:
    """A place in the order of these columns, to compare rows with."""
    return tuple_(
        *(bindparam(None, value, type_=column.type) for column, value in zip(columns, values, strict=True))
    )


def place_of(url: URL) -> str:
    """The place of a database, without what is secret: a file's path, or a server's URL."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    return url.set(username=None, password=None, query={}).render_as_string()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError) as error:  # an invalid port
        raise ConfigurationError(
            "NIGHTSHIFT_DATABASE_URL is not a database URL", param="DATABASE_URL"
        ) from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    # SQLAlchemy takes a path with two slashes too few for a host.
    if parsed.drivername not in _DRIVERS or (parsed.get_backend_name() == "sqlite" and parsed.host):
        raise ConfigurationError(
            f"NIGHTSHIFT_DATABASE_URL names {parsed.drivername!r}; use sqlite:/// or postgresql://",
            param="DATABASE_URL",
        )
    return parsed
