"""Statements about API keys and tenants' own secrets."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from nightshift.store import tables
from nightshift.tenants.keys import ApiKey, Scope

api_key = tables.api_key
tenant_secret = tables.tenant_secret


class Keys:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, new: ApiKey) -> None:
        self._connection.execute(
            insert(api_key).values(
                id=new.id,
                tenant_id=new.tenant_id,
                name=new.name,
                key_sha256=new.key_sha256,
                last4=new.last4,
                created_at=new.created_at,
                expires_at=new.expires_at,
                scopes=",".join(sorted(new.scopes)),
            )
        )

    def find(self, key_id: str) -> ApiKey | None:
        """By public id; the caller verifies the key (`ApiKey.admits`)."""
        row = self._connection.execute(select(api_key).where(api_key.c.id == key_id)).one_or_none()
        return _to_key(row) if row else None

    def list(self, tenant_id: str | None = None) -> Sequence[ApiKey]:
        """One tenant's keys, or all, oldest first."""
        wanted = select(api_key).order_by(api_key.c.created_at, api_key.c.id)
        if tenant_id is not None:
            wanted = wanted.where(api_key.c.tenant_id == tenant_id)
        return [_to_key(row) for row in self._connection.execute(wanted)]

    def page(self, tenant_id: str, *, limit: int, after: ApiKey | None = None) -> Sequence[ApiKey]:
        """One tenant's keys, oldest first. `after`: the last key of the previous page."""
        wanted = select(api_key).where(api_key.c.tenant_id == tenant_id)
        if after is not None:
            place = tuple_(
                bindparam(None, after.created_at, type_=api_key.c.created_at.type),
                bindparam(None, after.id, type_=api_key.c.id.type),
            )
            wanted = wanted.where(tuple_(api_key.c.created_at, api_key.c.id) > place)
        ordered = wanted.order_by(api_key.c.created_at, api_key.c.id).limit(limit)
        return [_to_key(row) for row in self._connection.execute(ordered)]

    def revoke(self, key_id: str, now: datetime) -> bool:
        """Revoke a key. False: unknown, or revoked before."""
        return (
            self._connection.execute(
                update(api_key)
                .where(api_key.c.id == key_id, api_key.c.revoked_at.is_(None))
                .values(revoked_at=now)
            ).rowcount
            == 1
        )

    def revoke_all(self, of_tenant: str, now: datetime) -> None:
        """Revoke a tenant's keys that are not revoked yet."""
        self._connection.execute(
            update(api_key)
            .where(api_key.c.tenant_id == of_tenant, api_key.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )

    def replace(self, key_id: str, by_key_id: str, expires_at: datetime) -> bool:
        """Record a key's successor, and until when the key itself is still valid. False: unknown, revoked,
        or replaced before.
        """
        return (
            self._connection.execute(
                update(api_key)
                .where(
                    api_key.c.id == key_id, api_key.c.revoked_at.is_(None), api_key.c.replaced_by.is_(None)
                )
                .values(replaced_by=by_key_id, expires_at=expires_at)
            ).rowcount
            == 1
        )

    def webhook_secret(self, tenant_id: str) -> bytes | None:
        """The tenant's own webhook secret, encrypted."""
        return self._connection.execute(
            select(tenant_secret.c.webhook_secret).where(tenant_secret.c.tenant_id == tenant_id)
        ).scalar_one_or_none()

    def keep_webhook_secret(self, tenant_id: str, encrypted: bytes, now: datetime) -> bool:
        """Set a tenant's webhook secret. False: it has one, which stays."""
        try:
            with self._connection.begin_nested():
                self._connection.execute(
                    insert(tenant_secret).values(
                        tenant_id=tenant_id, webhook_secret=encrypted, created_at=now
                    )
                )
        except IntegrityError:
            return False
        return True


def _to_key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        key_sha256=row.key_sha256,
        last4=row.last4,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        scopes=frozenset(map(Scope, row.scopes.split(","))),
        replaced_by=row.replaced_by,
    )
