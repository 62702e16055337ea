"""Statements about API keys and tenants' own secrets."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select, tuple_, update

from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position
from nightshift.tenants.keys import ApiKey, Scope

api_key = tables.api_key
tenant_secret = tables.tenant_secret


class Keys(Statements):
    def insert(self, new: ApiKey) -> None:
        self._execute(insert(api_key).values(vars(new) | {"scopes": ",".join(sorted(new.scopes))}))

    def find(self, key_id: str) -> ApiKey | None:
        """The key with this public id; the caller verifies the key (`ApiKey.admits`)."""
        return self._one(select(api_key).where(api_key.c.id == key_id), _to_key)

    def list(self, tenant_id: str | None = None) -> Sequence[ApiKey]:
        """One tenant's keys, or all, oldest first."""
        wanted = select(api_key).order_by(api_key.c.created_at, api_key.c.id)
        if tenant_id is not None:
            wanted = wanted.where(api_key.c.tenant_id == tenant_id)
        return self._all(wanted, _to_key)

    def page(self, tenant_id: str, *, limit: int, after: ApiKey | None = None) -> Sequence[ApiKey]:
        """One tenant's keys, oldest first. `after`: the last key of the previous page."""
        order = (api_key.c.created_at, api_key.c.id)
        wanted = select(api_key).where(api_key.c.tenant_id == tenant_id)
        if after is not None:
            wanted = wanted.where(tuple_(*order) > position(order, (after.created_at, after.id)))
        ordered = wanted.order_by(*order).limit(limit)
        return self._all(ordered, _to_key)

    def revoke(self, key_id: str, now: datetime) -> bool:
        """Revokes a key. False: unknown, or revoked before."""
        return self._changes_one(
            update(api_key)
            .where(api_key.c.id == key_id, api_key.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )

    def revoke_all(self, tenant: str, now: datetime) -> None:
        """Revokes a tenant's keys that are not revoked yet."""
        self._execute(
            update(api_key)
            .where(api_key.c.tenant_id == tenant, api_key.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )

    def replace(self, key_id: str, by_key_id: str, expires_at: datetime) -> bool:
        """Records a key's successor, and until when the key itself is still valid. False: unknown, revoked,
        or replaced before.
        """
        return self._changes_one(
            update(api_key)
            .where(api_key.c.id == key_id, api_key.c.revoked_at.is_(None), api_key.c.replaced_by.is_(None))
            .values(replaced_by=by_key_id, expires_at=expires_at)
        )

    def webhook_secret(self, tenant_id: str) -> bytes | None:
        """The tenant's own webhook secret, encrypted."""
        return self._execute(
            select(tenant_secret.c.webhook_secret).where(tenant_secret.c.tenant_id == tenant_id)
        ).scalar_one_or_none()

    def keep_webhook_secret(self, tenant_id: str, encrypted: bytes, now: datetime) -> bool:
        """Sets a tenant's webhook secret. False: it has one, which stays."""
        new = {"tenant_id": tenant_id, "webhook_secret": encrypted, "created_at": now}
        return self._inserts(insert(tenant_secret).values(new))


def _to_key(row: Row[Any]) -> ApiKey:
    return from_row(ApiKey, row, scopes=frozenset(map(Scope, row.scopes.split(","))))
