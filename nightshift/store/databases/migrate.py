"""Migrates a database's schema: `python -m nightshift.store.databases.migrate`.

The migrations are in `nightshift/_migrations` of a wheel, or `migrations/` of a checkout. Concurrent upgrades
of one database take turns.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from nightshift.errors import ConfigurationError, Conflicted, DatabaseUnusable, SchemaBehind
from nightshift.process.settings import DataSettings
from nightshift.process.starting import starting
from nightshift.store.databases import schema
from nightshift.store.databases.database import Database, place_of
from nightshift.store.databases.failures import ACCESS

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[2]
_PLACES: Final = (_PACKAGE / "_migrations", _PACKAGE.parent / "migrations")
TRIES_MAX: Final = 10
DIFFERENCES_SHOWN_MAX: Final = 4  # differences in a message, which has its own limit
RETRY_S: Final = 0.5  # the longest delay between tries
_ADVISORY_LOCK: Final = 0x6E736869667401  # an arbitrary number


def upgrade(database: Database) -> None:
    """Applies all migrations in one transaction. Raises ConfigurationError for a later release's schema, and
    DatabaseUnusable for one that is not what the migrations make, or older than they.
    """
    try:
        change_schema(database, _upgrade)
    except CommandError as error:
        raise ConfigurationError(
            f"The database has a schema of another release ({error}): start that release or a later one, or "
            "restore a backup"
        ) from error
    check_schema(database)


def _upgrade(connection: Connection) -> None:
    _refuse_older(_revision(connection))
    command.upgrade(_config(connection), "head")


def downgrade(database: Database, revision: str) -> None:
    """Revert migrations down to `revision` (`base`: all) in one transaction."""
    change_schema(database, lambda connection: command.downgrade(_config(connection), revision))


def change_schema(database: Database, change: Callable[[Connection], None]) -> None:
    """Changes the schema in one transaction while the service runs.

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
    newest: str  # the newest of this code


def revisions(database: Database) -> Revisions:
    """Raises DatabaseUnavailable."""
    with database.read() as connection:
        return Revisions(_revision(connection), _known_revisions()[0])


def check_schema(database: Database) -> None:
    """The schema has all that this code needs: it is its own, or a compatible later one during a fleet's
    upgrade. Raises SchemaBehind, DatabaseUnusable, which says what differs, and DatabaseUnavailable.

    A file that can only be read is refused here: all reads of it succeed, and all work on it would fail.
    """
    if database.is_locked_away:
        raise DatabaseUnusable(f"The database may only be read: {ACCESS}.")
    with database.read() as connection:
        applied = _revision(connection)
        lacks = _differences(connection, applied)
        while (now_applied := _revision(connection)) != applied:  # migrated meanwhile
            applied, lacks = now_applied, _differences(connection, now_applied)
    if lacks:
        raise _unusable(applied, lacks)


def _differences(connection: Connection, applied: str | None) -> list[str]:
    """Raises SchemaBehind, DatabaseUnusable."""
    newest, *earlier = _known_revisions()
    if applied == newest:
        return schema.differences(connection)
    if applied is None or applied in earlier:
        raise SchemaBehind(
            f"The database is at {applied or 'none'} of the migrations, and this version needs {newest}: run "
            "`python -m nightshift.store.databases.migrate`, or `nightshift up`, which does the same."
        )
    _refuse_older(applied)
    return schema.differences(connection, is_later=True)


def _refuse_older(applied: str | None) -> None:
    """Raises DatabaseUnusable for a revision from before the oldest that a release had."""
    oldest = _known_revisions()[-1]
    if applied is not None and applied.isdecimal() and int(applied) < int(oldest):
        raise DatabaseUnusable(
            f"The database is at migration {applied}, and this version goes on from {oldest}, the first of a "
            f"release: begin with a new database, or bring this one to {oldest} as docs/operations.md says "
            "under Upgrading."
        )


def _unusable(applied: str | None, lacks: Sequence[str]) -> DatabaseUnusable:
    shown = "; ".join(lacks[:DIFFERENCES_SHOWN_MAX])
    rest = len(lacks) - DIFFERENCES_SHOWN_MAX
    return DatabaseUnusable(
        f"The database's schema is not the one that migration {applied} makes; change it by hand, or restore "
        f"a backup: {shown}{f'; and {rest} more' if rest > 0 else ''}"
    )


def _revision(connection: Connection) -> str | None:
    """The schema's revision. None: the database is empty. Raises DatabaseUnusable where `alembic_version`
    does not say it.
    """
    context = MigrationContext.configure(connection)
    heads = context.get_current_heads()
    if not heads and (made := schema.tables_there(connection)):
        heads = context.get_current_heads()  # a migration that ended meanwhile has made both
        if not heads:
            raise _unversioned(connection, "names no migration", f"there are tables ({', '.join(made)})")
    if len(heads) > 1:
        raise _unversioned(connection, f"has {len(heads)} rows ({', '.join(sorted(heads))})", "one is right")
    return heads[0] if heads else None


def _unversioned(connection: Connection, fault: str, against: str) -> DatabaseUnusable:
    place = place_of(connection.engine.url)
    return DatabaseUnusable(
        f"The table alembic_version {fault}, and {against}: restore a backup of {place}, or, "
        f"where all tables are this version's, leave in it the one row '{_known_revisions()[0]}'"
    )


@cache
def _known_revisions() -> Sequence[str]:
    """The newest first."""
    return [script.revision for script in _scripts().walk_revisions()]


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
    from nightshift.process.private_files import keep_files_private
    from nightshift.store import open_database

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells the dialect each time it looks
    with starting():
        keep_files_private(DataSettings())
        with closing(open_database(DataSettings())) as database:
            before = revisions(database)
            upgrade(database)
            if before.applied != before.newest:
                log.info("migrated from %s to %s", before.applied or "an empty database", before.newest)
            log.info("the database has the current schema")


if __name__ == "__main__":
    main()
