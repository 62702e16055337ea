"""Statements about tenants, for administrators and authentication."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select, tuple_, update

from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.tenant import Tenant

tenant = tables.tenant


class Tenants(Statements):
    def insert(self, new: Tenant) -> bool:
        """Records a new tenant. False: there is or was one of this name, which stays."""
        return self._inserts(insert(tenant).values(vars(new) | {"quotas": new.quotas.to_json()}))

    def find(self, id: str) -> Tenant | None:
        """The tenant with this id, also one that was deleted."""
        return self._one(select(tenant).where(tenant.c.id == id), _to_tenant)

    def lock(self, id: str) -> None:
        """Locks a tenant: no other transaction changes it before the end of this one."""
        self._execute(select(tenant.c.id).where(tenant.c.id == id).with_for_update())

    def list(self, *, limit: int, after: Tenant | None = None) -> Sequence[Tenant]:
        """Tenants that were not deleted, newest first. `after`: the last tenant of the previous page."""
        order = (tenant.c.created_at, tenant.c.id)
        wanted = select(tenant).where(tenant.c.deleted_at.is_(None))
        if after is not None:
            wanted = wanted.where(tuple_(*order) < position(order, (after.created_at, after.id)))
        ordered = wanted.order_by(*(column.desc() for column in order)).limit(limit)
        return self._all(ordered, _to_tenant)

    def describe(self, id: str, description: str) -> None:
        self._update(id, description=description)

    def limit_priority(self, id: str, ceiling: PriorityClass) -> None:
        """Limits the class of jobs from now on."""
        self._update(id, priority_ceiling=ceiling)

    def limit(self, id: str, quotas: Quotas) -> None:
        """Sets quotas from now on; what is over one stays."""
        self._update(id, quotas=quotas.to_json())

    def disable(self, id: str, now: datetime) -> None:
        """Refuses its keys from now on; the first time stays."""
        self._execute(
            update(tenant).where(tenant.c.id == id, tenant.c.disabled_at.is_(None)).values(disabled_at=now)
        )

    def enable(self, id: str) -> None:
        self._update(id, disabled_at=None)

    def mark_deleted(self, id: str, now: datetime) -> None:
        self._update(id, deleted_at=now)

    def _update(self, id: str, **values: Any) -> None:
        self._execute(update(tenant).where(tenant.c.id == id).values(**values))


def _to_tenant(row: Row[Any]) -> Tenant:
    ceiling, quotas = PriorityClass(row.priority_ceiling), Quotas.from_json(row.quotas or {})
    return from_row(Tenant, row, priority_ceiling=ceiling, quotas=quotas)
