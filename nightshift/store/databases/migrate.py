"""Migrates a database's schema: `python -m nightshift.store.databases.migrate`.

The migrations are in `nightshift/_migrations` of a wheel, or `migrations/` of a checkout. Concurrent upgrades
of one database take turns.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
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
RETRY_S: Final = 0.5  # the longest delay between tries
_ADVISORY_LOCK: Final = 0x6E736869667401  # an arbitrary number


def upgrade(database: Database, revision: str = "head") -> None:
    """Apply the migrations up to `revision` in one transaction. Raises ConfigurationError for a later
    release's schema.
    """
    try:
        change_schema(database, lambda connection: command.upgrade(_config(connection), revision))
    except CommandError as error:
        raise ConfigurationError(f"The database has a schema of another release: {error}") from error


def downgrade(database: Database, revision: str) -> None:
    """Revert migrations down to `revision` (`base`: all) in one transaction."""
    change_schema(database, lambda connection: command.downgrade(_config(connection), revision))


def change_schema(database: Database, change: Callable[[Connection], None]) -> None:
    """Change the schema in one transaction while the service runs.

    Changed tables stay locked until the end, so a transaction that holds one and wants another can deadlock
    with this one: if PostgreSQL aborts it, it starts again.
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


@dataclass(frozen=True)
class Revisions:
    applied: str | None  # None: no migration
    newest: str | None  # of this code


def revisions(database: Database) -> Revisions:
    """Raises DatabaseUnavailable."""
    with database.read() as connection:
        return Revisions(_revision(connection), _scripts().get_current_head())


def is_current(database: Database) -> bool:
    """Whether the schema is exactly this code's."""
    found = revisions(database)
    return found.applied == found.newest


def serves(database: Database) -> bool:
    """Whether the schema has all that this code needs: its own, or a compatible later one during a fleet's
    upgrade.
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
    # SQLite's writers take turns anyway.
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
