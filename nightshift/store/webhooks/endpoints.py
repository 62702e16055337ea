"""Statements about webhook endpoints."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Text, cast, delete, func, insert, select, tuple_, update

from nightshift.outbound.webhook_endpoints import DisabledReason, WebhookEndpoint
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position

endpoint = tables.webhook_endpoint


class WebhookEndpoints(Statements):
    def insert(self, new: WebhookEndpoint) -> None:
        self._execute(insert(endpoint).values(_values(new)))

    def get(self, tenant_id: str, id: str) -> WebhookEndpoint | None:
        return self._get(tenant_id, id, is_locked=False)

    def lock(self, tenant_id: str, id: str) -> WebhookEndpoint | None:
        """The endpoint as `get` returns it; no other transaction changes it before the end of this one."""
        return self._get(tenant_id, id, is_locked=True)

    def _get(self, tenant_id: str, id: str, *, is_locked: bool) -> WebhookEndpoint | None:
        wanted = select(endpoint).where(endpoint.c.id == id, endpoint.c.tenant_id == tenant_id)
        return self._one(wanted.with_for_update() if is_locked else wanted, _to_endpoint)

    def list(
        self, tenant_id: str, *, limit: int, after: WebhookEndpoint | None = None
    ) -> Sequence[WebhookEndpoint]:
        """Newest first. `after`: the last endpoint of the previous page."""
        order = (endpoint.c.created_at, endpoint.c.id)
        wanted = select(endpoint).where(endpoint.c.tenant_id == tenant_id)
        if after is not None:
            wanted = wanted.where(tuple_(*order) < position(order, (after.created_at, after.id)))
        newest_first = (column.desc() for column in order)
        return self._all(wanted.order_by(*newest_first).limit(limit), _to_endpoint)

    def tenants_naming(self, event_type: str) -> Sequence[str]:
        """The tenants with an enabled endpoint that names this type."""
        names = cast(endpoint.c.event_types, Text).contains(f'"{event_type}"', autoescape=True)
        wanted = select(endpoint.c.tenant_id).where(endpoint.c.disabled_at.is_(None), names).distinct()
        return list(self._execute(wanted).scalars())

    def count(self, tenant_id: str) -> int:
        counted = select(func.count()).select_from(endpoint).where(endpoint.c.tenant_id == tenant_id)
        return int(self._execute(counted).scalar_one())

    def update(self, changed: WebhookEndpoint) -> None:
        """The endpoint was locked in this transaction."""
        self._execute(
            update(endpoint)
            .where(endpoint.c.id == changed.id, endpoint.c.tenant_id == changed.tenant_id)
            .values(_values(changed))
        )

    def delete(self, tenant_id: str, id: str) -> bool:
        """Deletes an endpoint. False: there is none."""
        deleted = delete(endpoint).where(endpoint.c.id == id, endpoint.c.tenant_id == tenant_id)
        return self._changes_one(deleted)


def _values(new: WebhookEndpoint) -> dict[str, Any]:
    return vars(new) | {"event_types": list(new.event_types)}


def _to_endpoint(row: Row[Any]) -> WebhookEndpoint:
    reason = row.disabled_reason
    return from_row(
        WebhookEndpoint,
        row,
        event_types=tuple(row.event_types),
        disabled_reason=None if reason is None else DisabledReason(reason),
    )
