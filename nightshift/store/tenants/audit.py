"""Statements about the audit log, whose entries are written with what they tell of and never changed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select

from nightshift.jobs import JsonObject
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.tenants.audit import Action, Actor, AuditEntry

audit = tables.audit


class Audit(Statements):
    def record(
        self,
        actor: Actor,
        action: Action,
        of_tenant: str | None,
        now: datetime,
        *,
        object_id: str | None = None,
        details: JsonObject | None = None,
    ) -> None:
        """`details` must not contain a secret."""
        self._execute(
            insert(audit).values(
                at=now,
                actor=actor.text,
                action=action,
                tenant_id=of_tenant,
                object_id=object_id,
                details=details or {},
            )
        )

    def list(
        self,
        *,
        limit: int,
        of_tenant: str | None = None,
        action: Action | None = None,
        before_id: int | None = None,
    ) -> Sequence[AuditEntry]:
        """Newest first. `before_id`: of the last entry on the previous page."""
        wanted = select(audit)
        if of_tenant is not None:
            wanted = wanted.where(audit.c.tenant_id == of_tenant)
        if action is not None:
            wanted = wanted.where(audit.c.action == action)
        if before_id is not None:
            wanted = wanted.where(audit.c.id < before_id)
        ordered = wanted.order_by(audit.c.id.desc()).limit(limit)
        return self._all(ordered, _to_entry)


def _to_entry(row: Row[Any]) -> AuditEntry:
    return from_row(AuditEntry, row)
