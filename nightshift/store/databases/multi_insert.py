"""Inserts many rows, or groups of rows into several tables, in one round trip.

    insert_groups(connection, [[(job, {...}), (shard, {...}), (outbox, {...})], ...])
    PreparedRows(dialect, shard, [{...}, ...]).insert(connection)

PostgreSQL gets one statement with a parameter per table, its rows as JSON: psycopg would parse a statement
with a parameter per value each time. SQLite has no such statement and no round trips, and gets one per table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    JSON,
    Column,
    ColumnDefault,
    Connection,
    Dialect,
    Insert,
    LargeBinary,
    Table,
    TextClause,
    insert,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

_dialect: Any = postgresql.dialect  # SQLAlchemy gives it no type
_sqlite_dialect: Any = sqlite.dialect
_DIALECT: Final[Dialect] = _dialect()
_SQLITE: Final[Dialect] = _sqlite_dialect()

Row = tuple[Table, Mapping[str, Any]]
Shape = tuple[Table, tuple[str, ...]]  # a table and the given columns


def insert_groups(connection: Connection, groups: Sequence[Sequence[Row]]) -> Sequence[int]:
    """Inserts groups of rows of the same tables and columns, referenced tables first. Returns the serial
    numbers of their last rows.
    """
    if not groups:
        return []
    shapes = tuple((table, tuple(values)) for table, values in groups[0])
    by_table = [[values for _, values in rows] for rows in zip(*groups, strict=True)]
    if connection.dialect.name == "postgresql":
        return _insert_at_once(connection, shapes, by_table)
    *before, (last, _) = shapes
    for (table, _), rows in zip(before, by_table[:-1], strict=True):
        connection.execute(_single_insert(table), rows)
    return list(connection.execute(_numbered(last), by_table[-1]).scalars())


class PreparedRows:
    """Rows of one table and of the same columns, converted before the transaction that inserts them."""

    def __init__(self, dialect: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """`dialect`: the database's. There is at least one row."""
        shape = (table, tuple(rows[0]))
        if dialect == "sqlite":
            insert_many = _sqlite_insert(shape)
            self._statement: TextClause | str = insert_many.statement
            self._rows: Any = [insert_many.parameters(row) for row in rows]
            return
        (converters,) = _converters((shape,))
        self._statement = _insert_alone(shape)
        self._rows = {"rows_0": json.dumps([_plain(one, converters) for one in rows])}

    def insert(self, connection: Connection) -> None:
        if isinstance(self._statement, str):
            connection.exec_driver_sql(self._statement, self._rows)
        else:
            connection.execute(self._statement, self._rows)


class _SqliteInsert:
    """The statement that inserts a row with the given columns, and the defaults of others."""

    def __init__(self, table: Table, given: tuple[str, ...]) -> None:
        compiled = insert(table).compile(dialect=_SQLITE, column_keys=given)
        names = tuple(compiled.positiontup or ())
        self.statement = str(compiled)
        self._defaults = _scalar_defaults(table, given)
        self._columns = [(name, _bound(table.c[name])) for name in names]

    def parameters(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        values = {**self._defaults, **row}
        return tuple(
            values[name] if convert is None else convert(values[name]) for name, convert in self._columns
        )


def _bound(column: Column[Any]) -> Callable[[Any], Any] | None:
    return column.type.dialect_impl(_SQLITE).bind_processor(_SQLITE)


@cache
def _sqlite_insert(shape: Shape) -> _SqliteInsert:
    return _SqliteInsert(*shape)


def _insert_at_once(
    connection: Connection, shapes: tuple[Shape, ...], by_table: Sequence[Sequence[Mapping[str, Any]]]
) -> Sequence[int]:
    converted = zip(by_table, _converters(shapes), strict=True)
    rows = {
        f"rows_{number}": json.dumps([_plain(one, converters) for one in values])
        for number, (values, converters) in enumerate(converted)
    }
    # Serial numbers are given in the order of the rows.
    return sorted(connection.execute(_combined_insert(shapes), rows).scalars())


@cache
def _single_insert(table: Table) -> Insert:
    return insert(table)


@cache
def _numbered(table: Table) -> Any:
    return insert(table).returning(*table.primary_key, sort_by_parameter_order=True)


@cache
def _insert_alone(shape: Shape) -> TextClause:
    return text(_insert_of(0, *shape))


@cache
def _combined_insert(shapes: tuple[Shape, ...]) -> TextClause:
    *steps, last = (_insert_of(number, *shape) for number, shape in enumerate(shapes))
    before = ", ".join(f"with_{number} AS ({step})" for number, step in enumerate(steps))
    [key] = shapes[-1][0].primary_key
    return text(f"WITH {before} {last} RETURNING {key.name}" if steps else f"{last} RETURNING {key.name}")


def _insert_of(number: int, table: Table, given: tuple[str, ...]) -> str:
    """The insert of a table's rows, with the defaults that SQLAlchemy adds to its own statements only."""
    quoted = _DIALECT.identifier_preparer.quote
    columns = {name: quoted(name) for name in given}
    types = ", ".join(f"{columns[name]} {table.c[name].type.compile(_DIALECT)}" for name in given)
    defaults = {quoted(name): str(value) for name, value in _scalar_defaults(table, given).items()}
    return (
        f"INSERT INTO {quoted(table.name)} ({', '.join([*columns.values(), *defaults])}) "
        f"SELECT {', '.join([*columns.values(), *defaults.values()])} "
        f"FROM ROWS FROM (json_to_recordset(CAST(:rows_{number} AS JSON)) AS ({types})) WITH ORDINALITY "
        "ORDER BY ordinality"
    )


def _scalar_defaults(table: Table, given: tuple[str, ...]) -> dict[str, int]:
    return {
        column.name: int(column.default.arg)
        for column in table.c
        if column.name not in given and isinstance(column.default, ColumnDefault) and column.default.is_scalar
    }


Converter = Callable[[Any], Any] | None  # None: the value is JSON already


@cache
def _converters(shapes: tuple[Shape, ...]) -> Sequence[Mapping[str, Converter]]:
    return [{name: _converter(table.c[name]) for name in given} for table, given in shapes]


def _converter(column: Column[Any]) -> Converter:
    if isinstance(column.type, JSON):
        return None
    if isinstance(column.type, LargeBinary):
        return lambda value: None if value is None else rf"\x{value.hex()}"
    return column.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _plain(values: Mapping[str, Any], converters: Mapping[str, Converter]) -> dict[str, Any]:
    return {
        name: value if (convert := converters[name]) is None else convert(value)
        for name, value in values.items()
    }
