"""SQLite databases with the current schema, copied from one that was migrated once: migrating takes longer
than most tests do.
"""

import tempfile
from functools import cache
from pathlib import Path

from nightshift.store import tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade


def migrated_sqlite(path: Path) -> Database:
    """A database without rows in a new file."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_template())
    return Database(f"sqlite:///{path}")


def emptied(database: Database) -> Database:
    """The same database without its rows."""
    with database.write() as connection:
        for table in reversed(tables.metadata.sorted_tables):  # quicker than TRUNCATE for a handful of rows
            connection.execute(table.delete())
    return database


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        path = Path(folder) / "nightshift.db"
        database = Database(f"sqlite:///{path}")
        upgrade(database)
        database.close()
        return path.read_bytes()
