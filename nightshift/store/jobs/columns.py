"""The columns of a job without its template, for reading many jobs: a template may be long."""

from typing import Any, Final

from sqlalchemy import JSON, ColumnElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from nightshift.store import tables


class _WithoutTemplate(FunctionElement[Any]):
    """A job's `spec` but its template, taken out by the database where it can."""

    name = "without_template"
    inherit_cache = True
    type = JSON()


@compiles(_WithoutTemplate, "sqlite")
def _in_sqlite(element: _WithoutTemplate, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_remove({compiler.process(element.clauses, **options)}, '$.template')"


@compiles(_WithoutTemplate, "postgresql")
def _in_postgresql(element: _WithoutTemplate, compiler: SQLCompiler, **options: Any) -> str:
    # PostgreSQL keeps NUL and half surrogates in JSON, and fails when it is to take them apart.
    spec = compiler.process(element.clauses, **options)
    kept = "SELECT json_object_agg(member.key, member.value)"
    without = f"({kept} FROM json_each({spec}) AS member WHERE member.key <> 'template')"
    return rf"CASE WHEN CAST({spec} AS TEXT) ~ '\\u(0000|[dD][89a-fA-F])' THEN {spec} ELSE {without} END"


JOB_WITHOUT_TEMPLATE: Final[tuple[ColumnElement[Any], ...]] = tuple(
    _WithoutTemplate(column).label("spec") if column.name == "spec" else column for column in tables.job.c
)
