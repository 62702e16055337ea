"""Bring a database to the schema this code expects, or back: `python -m nightshift.store.databases.migrate`.

The migrations lie beside the code: in `nightshift/_migrations` in an installed wheel, in `migrations/` in a
checkout. Two processes that upgrade the same database at once take turns.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text

from nightshift.errors import ConfigurationError, Conflicted
from nightshift.processes.starting import starting
from nightshift.settings import DataSettings
from nightshift.store import tables
from nightshift.store.databases.database import Database

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[2]
_PLACES: Final = (_PACKAGE / "_migrations", _PACKAGE.parent / "migrations")
TRIES_MAX: Final = 10
RETRY_S: Final = 0.5  # at most, between two tries
_ADVISORY_LOCK: Final = 0x6E736869667401  # any number of our own


def upgrade(database: Database, revision: str = "head") -> None:
    """Apply every migration up to `revision`, in one transaction. Raises ConfigurationError for a database
    that a later release has been at.
    """
    try:
        change_schema(database, lambda connection: command.upgrade(_config(connection), revision))
    except CommandError as error:
        raise ConfigurationError(f"The database has a schema of another release: {error}") from error


def downgrade(database: Database, revision: str) -> None:
    """Take migrations back down to `revision` (`base`: all of them), in one transaction."""
    change_schema(database, lambda connection: command.downgrade(_config(connection), revision))


def change_schema(database: Database, change: Callable[[Connection], None]) -> None:
    """Carry a change out in one transaction, beside a service that works with the tables.

    Each table it changes is locked until it ends, so a transaction that holds one table and wants another can
    deadlock with it: if PostgreSQL breaks this one off, it begins anew.
    """
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            with database.write_at_leisure() as connection:
                _wait_for_turn(connection)
                change(connection)
            return
        except Conflicted:
            if not tries_left:
                raise
            log.info("the service was in the way; once more")
            time.sleep(random.uniform(0, RETRY_S))


def is_current(database: Database) -> bool:
    """Whether the database has exactly the schema this code expects."""
    with database.read() as connection:
        return _revision(connection) == _scripts().get_current_head()


def serves(database: Database) -> bool:
    """Whether this code can work with the schema there is: its own, or a later one that still has everything
    this code knows. So processes of two releases run side by side while a fleet is upgraded.
    """
    with database.read() as connection:
        found = _revision(connection)
        if found in (None, _scripts().get_current_head()):
            return found is not None
        is_earlier = found in {script.revision for script in _scripts().walk_revisions()}
        return not is_earlier and _has_all_we_know(connection)


def _has_all_we_know(connection: Connection) -> bool:
    columns = inspect(connection).get_multi_columns()
    found = {name: {column["name"] for column in of_table} for (_, name), of_table in columns.items()}
    return all(
        {column.name for column in table.columns} <= found.get(table.name, set())
        for table in tables.metadata.sorted_tables
    )


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(_migrations()))


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()))
    config.attributes["connection"] = connection
    return config


def _migrations() -> Path:
    for place in _PLACES:
        if (place / "env.py").exists():
            return place
    raise ConfigurationError(
        f"No migrations found beside the code, looked in {', '.join(map(str, _PLACES))}."
    )


def _wait_for_turn(connection: Connection) -> None:
    # SQLite's write transactions take turns by themselves.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})


def main() -> None:
    from nightshift.store import open_database

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with starting(), closing(open_database(DataSettings())) as database:
        upgrade(database)
        log.info("the database has the current schema")


if __name__ == "__main__":
    main()
