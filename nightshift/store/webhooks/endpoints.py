"""Statements about webhook endpoints."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, cast, delete, func, insert, select, tuple_, update

from nightshift.outbound.webhook_endpoints import DisabledReason, WebhookEndpoint
from nightshift.store import tables

endpoint = tables.webhook_endpoint


class WebhookEndpoints:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, new: WebhookEndpoint) -> None:
        self._connection.execute(
            insert(endpoint).values(
                id=new.id, tenant_id=new.tenant_id, created_at=new.created_at, **_changeable(new)
            )
        )

    def get(self, tenant_id: str, id: str) -> WebhookEndpoint | None:
        return self._get(tenant_id, id, is_locked=False)

    def lock(self, tenant_id: str, id: str) -> WebhookEndpoint | None:
        """As `get`; no other transaction changes it before the end of this one."""
        return self._get(tenant_id, id, is_locked=True)

    def _get(self, tenant_id: str, id: str, *, is_locked: bool) -> WebhookEndpoint | None:
        wanted = select(endpoint).where(endpoint.c.id == id, endpoint.c.tenant_id == tenant_id)
        row = self._connection.execute(wanted.with_for_update() if is_locked else wanted).one_or_none()
        return _to_endpoint(row) if row else None

    def list(
        self, tenant_id: str, *, limit: int, after: WebhookEndpoint | None = None
    ) -> Sequence[WebhookEndpoint]:
        """Newest first. `after`: the last endpoint of the previous page."""
        wanted = select(endpoint).where(endpoint.c.tenant_id == tenant_id)
        if after is not None:
            place = tuple_(
                bindparam(None, after.created_at, type_=endpoint.c.created_at.type),
                bindparam(None, after.id, type_=endpoint.c.id.type),
            )
            wanted = wanted.where(tuple_(endpoint.c.created_at, endpoint.c.id) < place)
        ordered = wanted.order_by(endpoint.c.created_at.desc(), endpoint.c.id.desc()).limit(limit)
        return [_to_endpoint(row) for row in self._connection.execute(ordered)]

    def tenants_naming(self, event_type: str) -> Sequence[str]:
        """The tenants with an enabled endpoint that names this type."""
        names = cast(endpoint.c.event_types, Text).contains(f'"{event_type}"', autoescape=True)
        wanted = select(endpoint.c.tenant_id).where(endpoint.c.disabled_at.is_(None), names).distinct()
        return list(self._connection.execute(wanted).scalars())

    def count(self, tenant_id: str) -> int:
        counted = select(func.count()).select_from(endpoint).where(endpoint.c.tenant_id == tenant_id)
        return int(self._connection.execute(counted).scalar_one())

    def update(self, changed: WebhookEndpoint) -> None:
        """The endpoint was locked in this transaction."""
        self._connection.execute(
            update(endpoint)
            .where(endpoint.c.id == changed.id, endpoint.c.tenant_id == changed.tenant_id)
            .values(_changeable(changed))
        )

    def delete(self, tenant_id: str, id: str) -> bool:
        """False: there is none."""
        deleted = delete(endpoint).where(endpoint.c.id == id, endpoint.c.tenant_id == tenant_id)
        return self._connection.execute(deleted).rowcount == 1


def _changeable(of: WebhookEndpoint) -> dict[str, Any]:
    return {
        "name": of.name,
        "url": of.url,
        "event_types": list(of.event_types),
        "secret": of.secret,
        "secret_hint": of.secret_hint,
        "previous_secret": of.previous_secret,
        "previous_secret_until": of.previous_secret_until,
        "updated_at": of.updated_at,
        "failing_since": of.failing_since,
        "disabled_at": of.disabled_at,
        "disabled_reason": of.disabled_reason,
    }


def _to_endpoint(row: Row[Any]) -> WebhookEndpoint:
    reason = row.disabled_reason
    return WebhookEndpoint(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        url=row.url,
        event_types=tuple(row.event_types),
        secret=row.secret,
        secret_hint=row.secret_hint,
        previous_secret=row.previous_secret,
        previous_secret_until=row.previous_secret_until,
        created_at=row.created_at,
        updated_at=row.updated_at,
        failing_since=row.failing_since,
        disabled_at=row.disabled_at,
        disabled_reason=None if reason is None else DisabledReason(reason),
    )
