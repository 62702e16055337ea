"""Inserts into several tables in one round trip.

    insert_rows(connection, (job, {...}), (shard, {...}), (outbox, {...}))

PostgreSQL gets one statement. SQLite has no such statement and no round trips, and gets one per row.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import ColumnDefault, Connection, Insert, Table, bindparam, insert

Row = tuple[Table, Mapping[str, Any]]


def insert_rows(connection: Connection, *rows: Row) -> int:
    """Insert one row per table, referenced tables first. Returns the last row's serial number."""
    if connection.dialect.name == "postgresql":
        statement = _combined_insert(*((table, tuple(values)) for table, values in rows))
        named = {_name(table, column): value for table, values in rows for column, value in values.items()}
        return int(connection.execute(statement, named).scalar_one())
    for table, values in rows[:-1]:
        connection.execute(_single_insert(table), values)
    table, values = rows[-1]
    return int(connection.execute(_numbered(table), values).scalar_one())


@cache
def _single_insert(table: Table) -> Insert:
    return insert(table)


@cache
def _numbered(table: Table) -> Any:
    return insert(table).returning(*table.primary_key)


@cache
def _combined_insert(*shapes: tuple[Table, tuple[str, ...]]) -> Any:
    """Of (table, given columns) pairs."""
    *before, last = (_shared_insert(table, columns) for table, columns in shapes)
    steps = [one.cte(f"with_{number}") for number, one in enumerate(before)]
    return last.add_cte(*steps).returning(*last.table.primary_key)


def _shared_insert(table: Table, columns: tuple[str, ...]) -> Insert:
    """An INSERT for use beside others: its parameters carry the table's name, and it includes the column
    defaults, which SQLAlchemy adds only to a statement on its own.
    """
    given = {name: bindparam(_name(table, name), type_=table.c[name].type) for name in columns}
    rest = {
        column.name: column.default.arg
        for column in table.c
        if column.name not in given and isinstance(column.default, ColumnDefault) and column.default.is_scalar
    }
    return insert(table).values({**rest, **given})


def _name(table: Table, column: str) -> str:
    return f"{table.name}__{column}"
