"""The statements that a database is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from nightshift.store.databases.database import Database


@contextmanager
def recorded(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed in this block, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database._engine, "before_cursor_execute", note)
