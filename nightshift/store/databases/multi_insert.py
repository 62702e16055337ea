"""Rows for several tables in one round trip.

    insert_rows(connection, (job, {...}), (shard, {...}), (outbox, {...}))

PostgreSQL takes them as one statement: each one more would be a round trip while a client waits. SQLite has
no such statement and no round trips, and takes them one by one.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import ColumnDefault, Connection, Insert, Table, bindparam, insert

Row = tuple[Table, Mapping[str, Any]]


def insert_rows(connection: Connection, *rows: Row) -> int:
    """One row for each of these tables, in an order in which they may refer to those before them. Returns the
    serial number that the last one is given.
    """
    if connection.dialect.name == "postgresql":
        statement = _as_one(*((table, tuple(values)) for table, values in rows))
        named = {_name(table, column): value for table, values in rows for column, value in values.items()}
        return int(connection.execute(statement, named).scalar_one())
    for table, values in rows[:-1]:
        connection.execute(_alone(table), values)
    table, values = rows[-1]
    return int(connection.execute(_numbered(table), values).scalar_one())


@cache
def _alone(table: Table) -> Insert:
    return insert(table)


@cache
def _numbered(table: Table) -> Any:
    return insert(table).returning(*table.primary_key)


@cache
def _as_one(*shapes: tuple[Table, tuple[str, ...]]) -> Any:
    """Of shapes (table, the columns that are given)."""
    *before, last = (_named(table, columns) for table, columns in shapes)
    steps = [one.cte(f"with_{number}") for number, one in enumerate(before)]
    return last.add_cte(*steps).returning(*last.table.primary_key)


def _named(table: Table, columns: tuple[str, ...]) -> Insert:
    """An INSERT that shares a statement with others: its parameters carry the table's name, and the defaults,
    which SQLAlchemy fills in for a statement alone, are part of it.
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
