"""Statements about what tenants hold: counters that change in the transaction of what they count.

A tenant has several rows, whose sums count: its transactions seldom wait for each other. One that may be
refused writes the first row and then reads the sums: such transactions of a tenant take turns, and together
cannot exceed a quota.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, literal, or_, select, union_all
from sqlalchemy.dialects import postgresql, sqlite

from nightshift.jobs import JobKind, JobState
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.tenants.holdings import HOLDING_NAMES, Holding
from nightshift.tenants.quotas import NO_QUOTAS, Quotas

holding = tables.holding
file = tables.file
job = tables.job
tenant = tables.tenant
upload_part = tables.upload_part

SLOTS: Final = 8  # rows of a tenant in PostgreSQL; SQLite's writers take turns anyway
_FIRST: Final = 0

_UNFINISHED: Final = tuple(state for state in JobState if not state.is_terminal)
_IS_BULK: Final = job.c.kind == JobKind.BULK
_ROWS_LEFT: Final = (
    func.coalesce(job.c.rows_total, job.c.rows_estimated, 0) - job.c.rows_succeeded - job.c.rows_failed
)
_HELD_BY_JOB: Final[list[ColumnElement[Any]]] = [  # as `held_by` says
    case((_IS_BULK, 0), else_=1),
    case((_IS_BULK, 1), else_=0),
    case((_IS_BULK, _ROWS_LEFT), else_=0),
    job.c.tokens_queued,
]

_SUMS: Final = [func.coalesce(func.sum(holding.c[name]), literal(0)).label(name) for name in HOLDING_NAMES]


_OF_EACH: Final = (
    select(holding.c.tenant_id, *(func.sum(holding.c[name]).label(name) for name in HOLDING_NAMES))
    .group_by(holding.c.tenant_id)
    .subquery()
)
_IS_OWN: Final = _OF_EACH.c.tenant_id == bindparam("tenant")


def _total(name: str, *which: ColumnElement[bool]) -> ColumnElement[Any]:
    total = func.sum(_OF_EACH.c[name])
    return func.coalesce(total.filter(*which) if which else total, literal(0))


_QUEUE: Final = select(  # built once: a request waits while SQLAlchemy builds it
    *(_total(name, _IS_OWN).label(name) for name in HOLDING_NAMES),
    _total("online_requests").label("online_total"),
    func.count().filter(_OF_EACH.c.online_requests > 0).label("online_tenants"),
    _total("bulk_rows").label("rows_total"),
    func.count().filter(_OF_EACH.c.bulk_jobs > 0).label("bulk_tenants"),
    select(tenant.c.quotas).where(tenant.c.id == bindparam("tenant")).scalar_subquery().label("quotas"),
)


def _adding(new: postgresql.Insert | sqlite.Insert) -> postgresql.Insert | sqlite.Insert:
    sums = {name: holding.c[name] + new.excluded[name] for name in HOLDING_NAMES}
    return new.on_conflict_do_update(index_elements=["tenant_id", "slot"], set_=sums)


_ADD: Final = {
    "postgresql": _adding(postgresql.insert(holding)),
    "sqlite": _adding(sqlite.insert(holding)),
}


@dataclass(frozen=True)
class Queue:
    """The waiting work, for the admission of more."""

    own: Holding  # the tenant's
    quotas: Quotas  # the tenant's own
    online_total: int  # all tenants' unanswered requests
    online_tenants: int  # tenants with any
    rows_total: int  # all tenants' rows of bulk jobs
    bulk_tenants: int  # tenants with an unfinished bulk job


class Holdings(Statements):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._added: dict[str, Holding] = {}
        self._checks: dict[str, Callable[[Holding], None]] = {}
        self._queues: dict[str, Queue] = {}  # as read

    def add(self, tenant_id: str, change: Holding) -> None:
        """Counts a change that this transaction makes. Written at its end (`write`)."""
        self._added[tenant_id] = self._added.get(tenant_id, Holding()) + change

    def check_at_end(self, tenant_id: str, check: Callable[[Holding], None]) -> None:
        """Lets `check` see what the tenant then holds; if it raises, the transaction is rolled back."""
        self._checks[tenant_id] = check

    def take_turn(self, tenant_id: str) -> None:
        """Waits for the tenant's other transactions that do so or are checked at their end. What this one
        then counts, theirs included, stays until it ends. The caller holds no other lock.
        """
        self._upsert(tenant_id, Holding(), is_first=True)

    def write(self) -> None:
        """Writes what was added: after all else, and in one order, so that transactions which count for the
        same tenants wait for each other shortly and never in a circle.
        """
        for name in sorted(name for name, change in self._added.items() if change):
            self._upsert(name, self._added[name], is_first=name in self._checks)
        for name, check in self._checks.items():
            check(self.total(name))
        self._added.clear()
        self._checks.clear()

    def total(self, tenant_id: str) -> Holding:
        """The tenant's holding, without what this transaction has not written yet."""
        return _to_holding(self._execute(select(*_SUMS).where(holding.c.tenant_id == tenant_id)).one())

    def queue(self, tenant_id: str) -> Queue:
        """Reads a few rows of each tenant, however much waits. With what this transaction has added, of which
        no tenant is counted as new.
        """
        queue = self._queues.get(tenant_id)
        if queue is None:
            row: Any = self._execute(_QUEUE, {"tenant": tenant_id}).one()
            queue = self._queues[tenant_id] = Queue(
                own=_to_holding(row),
                quotas=Quotas.from_json(row.quotas) if row.quotas else NO_QUOTAS,
                online_total=int(row.online_total),
                online_tenants=row.online_tenants,
                rows_total=int(row.rows_total),
                bulk_tenants=row.bulk_tenants,
            )
        if not self._added:
            return queue
        return replace(
            queue,
            own=queue.own + self._added.get(tenant_id, Holding()),
            online_total=queue.online_total + sum(change.online_requests for change in self._added.values()),
            rows_total=queue.rows_total + sum(change.bulk_rows for change in self._added.values()),
        )

    def differences(self) -> Mapping[str, Holding]:
        """Amounts that the counters of tenants lack. One statement reads them at one instant, so adding them
        is right whatever is counted meanwhile.
        """
        none = [literal(0)] * 4
        files = select(file.c.tenant_id, literal(1), file.c.size_bytes, *none)
        parts = select(upload_part.c.tenant_id, literal(0), upload_part.c.size_bytes, *none)
        bodies = select(job.c.tenant_id, literal(0), job.c.stored_bytes, *none)
        jobs = select(job.c.tenant_id, literal(0), literal(0), *_HELD_BY_JOB).where(
            job.c.state.in_(_UNFINISHED)
        )
        counters = select(holding.c.tenant_id, *(-holding.c[name] for name in HOLDING_NAMES))
        every = union_all(files, parts, bodies, jobs, counters).subquery()
        of_tenant, *amounts = every.c
        sums = [func.sum(amount).label(name) for name, amount in zip(HOLDING_NAMES, amounts, strict=True)]
        differ: list[ColumnElement[bool]] = [total != 0 for total in sums]
        wanted = select(of_tenant.label("tenant_id"), *sums).group_by(of_tenant).having(or_(*differ))
        return {row.tenant_id: _to_holding(row) for row in self._execute(wanted)}

    def _upsert(self, tenant_id: str, change: Holding, *, is_first: bool) -> None:
        dialect = self._connection.dialect.name
        slot = _FIRST if is_first or dialect == "sqlite" else random.randrange(SLOTS)
        self._execute(_ADD[dialect], {"tenant_id": tenant_id, "slot": slot, **vars(change)})


def _to_holding(row: Row[Any]) -> Holding:
    return Holding(**{name: int(getattr(row, name)) for name in HOLDING_NAMES})
