"""A hint for SQLite, which plans without statistics. PostgreSQL has them, and gets the bare expression.

https://www.sqlite.org/optoverview.html, "Manual Control Of Query Plans"
"""

from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class _Unindexed(FunctionElement[Any]):
    inherit_cache = True


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column that is to be compared, without its index."""
    same = _Unindexed(column)
    same.type = column.type
    return same


@compiles(_Unindexed, "sqlite")
def _unindexed_in_sqlite(element: _Unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{compiler.process(element.clauses, **options)}"


@compiles(_Unindexed)
def _bare(element: _Unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)})"
