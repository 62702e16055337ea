"""Statements about tenants, for administrators and authentication."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.tenant import Tenant

tenant = tables.tenant


class Tenants:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, new: Tenant) -> bool:
        """Record a new tenant. False: there is or was one of this name, which stays."""
        try:
            with self._connection.begin_nested():
                self._connection.execute(
                    insert(tenant).values(
                        id=new.id,
                        description=new.description,
                        created_at=new.created_at,
                        priority_ceiling=new.priority_ceiling,
                        quotas=new.quotas.to_json(),
                    )
                )
        except IntegrityError:
            return False
        return True

    def find(self, id: str) -> Tenant | None:
        """Also one that was deleted."""
        row = self._connection.execute(select(tenant).where(tenant.c.id == id)).one_or_none()
        return _to_tenant(row) if row else None

    def lock(self, id: str) -> None:
        """Let no other transaction change it before the end of this one."""
        self._connection.execute(select(tenant.c.id).where(tenant.c.id == id).with_for_update())

    def list(self, *, limit: int, after: Tenant | None = None) -> Sequence[Tenant]:
        """Those that were not deleted, newest first. `after`: the last tenant of the previous page."""
        wanted = select(tenant).where(tenant.c.deleted_at.is_(None))
        if after is not None:
            place = tuple_(
                bindparam(None, after.created_at, type_=tenant.c.created_at.type),
                bindparam(None, after.id, type_=tenant.c.id.type),
            )
            wanted = wanted.where(tuple_(tenant.c.created_at, tenant.c.id) < place)
        ordered = wanted.order_by(tenant.c.created_at.desc(), tenant.c.id.desc()).limit(limit)
        return [_to_tenant(row) for row in self._connection.execute(ordered)]

    def describe(self, id: str, description: str) -> None:
        self._update(id, description=description)

    def limit_priority(self, id: str, ceiling: PriorityClass) -> None:
        """Of jobs from now on."""
        self._update(id, priority_ceiling=ceiling)

    def limit(self, id: str, quotas: Quotas) -> None:
        """From now on; what is over a quota stays."""
        self._update(id, quotas=quotas.to_json())

    def disable(self, id: str, now: datetime) -> None:
        """Refuse its keys from now on; the first time stays."""
        self._connection.execute(
            update(tenant).where(tenant.c.id == id, tenant.c.disabled_at.is_(None)).values(disabled_at=now)
        )

    def enable(self, id: str) -> None:
        self._update(id, disabled_at=None)

    def mark_deleted(self, id: str, now: datetime) -> None:
        self._update(id, deleted_at=now)

    def _update(self, id: str, **values: Any) -> None:
        self._connection.execute(update(tenant).where(tenant.c.id == id).values(**values))


def _to_tenant(row: Row[Any]) -> Tenant:
    return Tenant(
        id=row.id,
        description=row.description,
        created_at=row.created_at,
        priority_ceiling=PriorityClass(row.priority_ceiling),
        quotas=Quotas.of(row.quotas or {}),
        disabled_at=row.disabled_at,
        deleted_at=row.deleted_at,
    )
