"""Bring a database to the schema this code expects, or back: `python -m nightshift.store.migrate`.

The migrations lie beside the code: in `nightshift/_migrations` in an installed wheel, in `migrations/` in a
checkout. Two processes that upgrade the same database at once take turns.
"""

import logging
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from nightshift.errors import ConfigurationError
from nightshift.settings import DataSettings
from nightshift.store.database import Database

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES: Final = (_PACKAGE / "_migrations", _PACKAGE.parent / "migrations")
_ADVISORY_LOCK: Final = 0x6E736869667401  # any number of our own


def upgrade(database: Database, revision: str = "head") -> None:
    """Apply every migration up to `revision`, in one transaction."""
    with database.write_at_leisure() as connection:
        _wait_for_turn(connection)
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Take migrations back down to `revision` (`base`: all of them), in one transaction."""
    with database.write_at_leisure() as connection:
        _wait_for_turn(connection)
        command.downgrade(_config(connection), revision)


def is_current(database: Database) -> bool:
    """Whether the database has exactly the schema this code expects."""
    with database.read() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    return found == ScriptDirectory(str(_migrations())).get_current_head()


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
    database = open_database(DataSettings())
    upgrade(database)
    log.info("the database has the current schema")
    database.close()


if __name__ == "__main__":
    main()
