"""The statement for a page of a tenant's jobs, newest first, in the order of an index.

Each filter by itself reads an index in the page's order, so a page costs the same however many jobs there
are. Of several, one is read by its index, which has what the others compare: jobs that are not wanted are not
read from the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BindParameter,
    Column,
    ColumnElement,
    Select,
    String,
    bindparam,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from nightshift.jobs import Face, Job, JobKind, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import position
from nightshift.store.databases.planner_hints import unindexed


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


job = tables.job

_ORDER = (job.c.created_at, job.c.id)
_NEWEST_FIRST = tuple(column.desc() for column in _ORDER)


@dataclass(frozen=True, kw_only=True)
class JobFilters:
    """Filters of a list of jobs. None, or no state: any."""

    kind: JobKind | None = None
    face: Face | None = None
    states: tuple[JobState, ...] = ()  # any of these
    priority: PriorityClass | None = None
    model: str | None = None
    name: str | None = None
    created_from: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive


def listing(tenant_id: str, limit: int, after: Job | None, filters: JobFilters) -> Select[tuple[Any, ...]]:
    """A page of the tenant's jobs after this one, without their templates."""
    guards = [
        job.c.tenant_id == tenant_id,
        job.c.deleted_at.is_(None),
        *_equal(filters),
        *_period(filters, after),
    ]
    states = tuple(dict.fromkeys(filters.states))
    wanted = select(*JOB_WITHOUT_TEMPLATE)
    if filters.name is None and len(states) > 1:
        # The index is in the page's order within a state: each one's page, and of those the newest.
        pages = union_all(*(_page_of(state, guards, limit) for state in states)).subquery()
        wanted = wanted.join(pages, pages.c.id == job.c.id)
    elif states:
        state = job.c.state if filters.name is None else unindexed(job.c.state)
        wanted = wanted.where(*guards, state.in_(states) if len(states) > 1 else state == states[0])
    else:
        wanted = wanted.where(*guards)
    return wanted.order_by(*_NEWEST_FIRST).limit(limit)


def _equal(filters: JobFilters) -> list[ColumnElement[bool]]:
    """The filters that an index compares. A name's index is used alone: it has the fewest jobs."""
    if filters.name is not None:
        return [
            job.c.name == filters.name,
            *(unindexed(column) == value for column, value in _others(filters)),
        ]
    return [column == value for column, value in _others(filters)]


def _others(filters: JobFilters) -> list[tuple[Column[Any], str | BindParameter[str]]]:
    filtered = (
        (job.c.kind, _literal(filters.kind)),
        (job.c.face, _literal(filters.face)),
        (job.c.priority, filters.priority),
        (job.c.model, filters.model),
    )
    return [(column, value) for column, value in filtered if value is not None]


def _literal(value: JobKind | Face | None) -> BindParameter[str] | None:
    """Written into the statement: only so is the index of batches found to have all that is wanted."""
    return None if value is None else bindparam(None, value.value, type_=String(), literal_execute=True)


def _period(filters: JobFilters, after: Job | None) -> list[ColumnElement[bool]]:
    """The bounds of a page, whose one end an index can begin at: the period's, or the previous page's."""
    first, end = filters.created_from, filters.created_before
    bounds = [] if first is None else [job.c.created_at >= first]
    if after is not None and (end is None or after.created_at < end):
        return [*bounds, tuple_(*_ORDER) < position(_ORDER, (after.created_at, after.id))]
    return bounds if end is None else [*bounds, job.c.created_at < end]


def _page_of(state: JobState, guards: Sequence[ColumnElement[bool]], limit: int) -> Select[tuple[Any]]:
    page = select(job.c.id).where(*guards, job.c.state == state).order_by(*_NEWEST_FIRST).limit(limit)
    return select(page.subquery().c.id)
