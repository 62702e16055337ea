"""The schema of a database, the statements that it gets, their plans, and tables large enough for one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Table, event

from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import revisions


def is_current(database: Database) -> bool:
    """Whether the schema is exactly this code's."""
    known = revisions(database)
    return known.applied == known.newest


def plan_of(connection: Connection, statement: str, parameters: Any = ()) -> str:
    """The plan by which the database reads the rows of a statement, a line a step."""
    explain = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    return "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))


def copy_rows(store: Store, table: Table, count: int, **values: str) -> None:
    """Copies the only row of a table `count` times; `values` are SQL, in which `number` is 1, 2, 3 …"""
    names = [f'"{column.name}"' for column in table.columns]
    copied = [values.get(column.name, f'"{column.name}"') for column in table.columns]
    with store.database.write() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(names)}) WITH RECURSIVE numbers(number) AS "
            f"(SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {count}) "
            f"SELECT {', '.join(copied)} FROM numbers, {table.name}"
        )


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
