"""Compares a database's schema with what this code expects: tables, columns, nullability, types, uniqueness.

Three statements on the catalogue, a few milliseconds. Types are compared where a difference loses or refuses
values; a wider one is none. What is there besides does no harm, unless a column of it must be given a value.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Column, Connection, Dialect, Table, UniqueConstraint, inspect, text
from sqlalchemy.schema import CreateColumn

from nightshift.store import tables

_COLUMNS: Final = {
    "sqlite": text(
        'SELECT m.name, p.name, p.type, NULL, p."notnull" = 0, p.dflt_value IS NOT NULL, p.pk > 0, TRUE'
        " FROM sqlite_master m JOIN pragma_table_info(m.name) p WHERE m.type = 'table'"
    ),
    "postgresql": text(
        "SELECT c.relname, a.attname, format_type(a.atttypid, NULL), nullif(a.atttypmod, -1) - 4,"
        " NOT a.attnotnull, a.atthasdef OR a.attidentity <> '', FALSE,"
        " has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        " AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relkind IN ('r', 'p') AND c.relname = ANY(:names) AND pg_table_is_visible(c.oid)"
        " AND a.attnum > 0 AND NOT a.attisdropped"
    ),
}
# A row for each column of each unique index.
_UNIQUE: Final = {
    "sqlite": text(
        "SELECT m.name, i.name, x.name, i.partial FROM sqlite_master m JOIN pragma_index_list(m.name) i"
        " JOIN pragma_index_info(i.name) x WHERE m.type = 'table' AND i.\"unique\""
    ),
    "postgresql": text(
        "SELECT c.relname, i.indexrelid, a.attname, i.indpred IS NOT NULL FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)"
        " WHERE c.relname = ANY(:names) AND pg_table_is_visible(c.oid) AND i.indisunique AND i.indisvalid"
    ),
}
TABLES_SHOWN_MAX: Final = 3  # tables in a message, which has its own limit
_WIDER: Final = frozenset({("INTEGER", "BIGINT"), ("VARCHAR", "TEXT")})  # what may stand for what


@dataclass(frozen=True)
class _Type:
    name: str
    length: int | None = None  # characters of text; None: any

    def holds(self, other: "_Type") -> bool:
        """Whether every value of the other type can be stored."""
        if self.name != other.name:
            return (other.name, self.name) in _WIDER
        return self.length is None or (other.length is not None and other.length <= self.length)

    def __str__(self) -> str:
        return self.name if self.length is None else f"{self.name}({self.length})"


@dataclass(frozen=True)
class _Column:
    type: _Type
    is_nullable: bool
    has_default: bool
    is_key: bool  # SQLite says nothing of whether those may be null


@dataclass
class _Table:
    columns: dict[str, _Column] = field(default_factory=dict)
    unique: set[tuple[frozenset[str], bool]] = field(default_factory=set)  # columns, and whether of some rows
    may_be_used: bool = True


def differences(connection: Connection, *, is_later: bool = False) -> list[str]:
    """Differences with which this code could not work.

    `is_later`: the schema of a later release, which is trusted in what it has widened or relaxed.
    """
    there_are = _read(connection)
    lacks = _encoding(connection)
    for table in tables.metadata.sorted_tables:
        there = there_are.get(table.name)
        if there is None:
            lacks.append(f"table {table.name} is missing")
            continue
        lacks += _missing(table, there, connection.dialect)
        if not is_later:
            lacks += _changed(table, there, connection.dialect)
    return lacks


def tables_there(connection: Connection) -> list[str]:
    """The tables of ours that the database has, some of them if they are many."""
    there = set(inspect(connection).get_table_names())
    return sorted(there & set(tables.metadata.tables))[:TABLES_SHOWN_MAX]


def _missing(table: Table, there: _Table, dialect: Dialect) -> Iterator[str]:
    """Differences for which a statement of this code would be refused."""
    if not there.may_be_used:
        yield f"table {table.name} may not be read and written by this user"
    for column in table.columns:
        if column.name not in there.columns:
            yield f"column {table.name}.{column.name} is missing ({_definition(column, dialect)})"
    for name, actual in there.columns.items():
        if name not in table.columns and not (actual.is_nullable or actual.has_default or actual.is_key):
            yield f"column {table.name}.{name}, unknown to this version, must be given a value"


def _changed(table: Table, there: _Table, dialect: Dialect) -> Iterator[str]:
    for column in table.columns:
        actual = there.columns.get(column.name)
        if actual is None:
            continue
        expected = _expected_type(column, dialect)
        if not actual.type.holds(expected):
            yield f"column {table.name}.{column.name} is {actual.type} instead of {expected}"
        if actual.is_nullable != column.nullable and not column.primary_key:
            what = "may be null" if actual.is_nullable else "may not be null"
            yield f"column {table.name}.{column.name} {what}"
    for columns, is_partial in _expected_unique(table):
        if (columns, is_partial) not in there.unique:
            names = ", ".join(column.name for column in table.columns if column.name in columns)
            yield f"table {table.name} has no unique index on {names}"


def _definition(column: Column[Any], dialect: Dialect) -> str:
    return " ".join(str(CreateColumn(column).compile(dialect=dialect)).split())


def _encoding(connection: Connection) -> list[str]:
    """PostgreSQL keeps one encoding per database, and another one refuses most texts."""
    if connection.dialect.name != "postgresql":
        return []
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    return [] if encoding == "UTF8" else [f"the database's encoding is {encoding} instead of UTF8"]


def _read(connection: Connection) -> Mapping[str, _Table]:
    dialect = connection.dialect.name
    given = {} if dialect == "sqlite" else {"names": list(tables.metadata.tables)}
    there: defaultdict[str, _Table] = defaultdict(_Table)
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for row in connection.execute(_COLUMNS[dialect], given):
        table, name, type, length, is_nullable, has_default, is_key, may_be_used = row
        column = _Column(_type(dialect, type, length), bool(is_nullable), bool(has_default), bool(is_key))
        there[table].columns[name] = column
        there[table].may_be_used = bool(may_be_used)
        if is_key:
            keys[table].add(name)
    for table, columns in keys.items():  # SQLite has no index for a key that is the row's number
        there[table].unique.add((frozenset(columns), False))
    for table, unique in _grouped(connection.execute(_UNIQUE[dialect], given)):
        there[table].unique.add(unique)
    return there


def _grouped(rows: Iterable[Any]) -> Iterator[tuple[str, tuple[frozenset[str], bool]]]:
    columns: defaultdict[tuple[str, object, bool], set[str]] = defaultdict(set)
    for table, index, column, is_partial in rows:
        columns[table, index, bool(is_partial)].add(column)
    for (table, _, is_partial), names in columns.items():
        yield table, (frozenset(names), is_partial)


def _expected_type(column: Column[Any], dialect: Dialect) -> _Type:
    name, _, length = column.type.compile(dialect).partition("(")
    return _type(dialect.name, name, int(length.rstrip(")")) if length else None)


def _expected_unique(table: Table) -> Iterator[tuple[frozenset[str], bool]]:
    yield frozenset(table.primary_key.columns.keys()), False
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield frozenset(constraint.columns.keys()), False
    for index in table.indexes:
        if index.unique:
            is_partial = index.dialect_options["postgresql"]["where"] is not None
            yield frozenset(index.columns.keys()), is_partial


def _type(dialect: str, name: str, length: int | None) -> _Type:
    """A type by its name in SQL or in the catalogue."""
    name = name.upper()
    if dialect == "sqlite":
        return _Type(_affinity(name))
    if name in ("CHARACTER VARYING", "VARCHAR"):
        return _Type("VARCHAR", length)
    return _Type(name)


def _affinity(name: str) -> str:
    """The class of values that SQLite prefers for a declared type: it stores every type in every column.

    https://www.sqlite.org/datatype3.html, "Determination Of Column Affinity"
    """
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"
