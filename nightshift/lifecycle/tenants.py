"""What administrators do with tenants and their keys, for the API and the command line.

Each function is one change in the caller's open transaction.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.store import Transaction
from nightshift.tenants.keys import DEFAULT_SCOPES, DEFAULT_TENANT, ApiKey, Scope, check_tenant_name, new_key
from nightshift.tenants.tenant import Tenant, TenantState

OVERLAP_S: Final = 86_400  # for which a rotated key is still valid
OVERLAP_MAX_S: Final = 30 * 86_400


@dataclass(frozen=True)
class CreatedKey:
    """A new key as it is stored, and the key itself, which is shown once."""

    stored: ApiKey
    key: str


def create_tenant(tx: Transaction, name: str, description: str, now: datetime) -> Tenant:
    """Raises InvalidRequest, and Conflict if there is or was a tenant of this name."""
    check_tenant_name(name, param="name")
    new = Tenant(id=name, description=description, created_at=now)
    if tx.tenants.insert(new):
        return new
    found = tx.tenants.find(name)
    if found is not None and found.state is TenantState.DELETED:
        raise Conflict(
            f"A tenant '{name}' was deleted, and what it had may still be there: use another name.",
            param="name",
            code="tenant_deleted",
        )
    raise Conflict(f"There is a tenant '{name}' already.", param="name", code="tenant_exists")


def get_tenant(tx: Transaction, name: str, param: str = "tenant") -> Tenant:
    """A tenant that was not deleted. Raises NotFound."""
    found = tx.tenants.find(name)
    if found is None or found.state is TenantState.DELETED:
        raise NotFound(f"No such Tenant object: {name}", param=param)
    return found


def update_tenant(
    tx: Transaction, name: str, now: datetime, *, description: str | None = None, disabled: bool | None = None
) -> Tenant:
    """Change what is given. Raises NotFound."""
    get_tenant(tx, name)
    if description is not None:
        tx.tenants.describe(name, description)
    if disabled is not None:
        tx.tenants.disable(name, now) if disabled else tx.tenants.enable(name)
    return get_tenant(tx, name)


def delete_tenant(tx: Transaction, name: str, now: datetime) -> None:
    """Revoke its keys; its name is not given again. Raises NotFound, and Conflict while a job of the tenant
    has not ended, and for the tenant `default`, which `nightshift up` makes keys of.
    """
    get_tenant(tx, name)
    if name == DEFAULT_TENANT:
        raise Conflict(f"Tenant '{name}' cannot be deleted; it can be disabled.", code="tenant_is_default")
    if tx.load.has_unfinished(name):
        raise Conflict(
            f"Tenant '{name}' has jobs that have not ended: cancel them first.", code="tenant_has_jobs"
        )
    tx.keys.revoke_all(name, now)
    tx.tenants.mark_deleted(name, now)


def create_key(
    tx: Transaction,
    tenant: str,
    now: datetime,
    *,
    name: str = "",
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
) -> CreatedKey:
    """Raises NotFound."""
    get_tenant(tx, tenant)
    key = new_key()
    stored = ApiKey.of(key, tenant_id=tenant, name=name, created_at=now, expires_at=expires_at, scopes=scopes)
    tx.keys.insert(stored)
    return CreatedKey(stored, key)


def ensure_tenant(tx: Transaction, name: str, now: datetime) -> None:
    """Create a tenant that does not exist. Raises InvalidRequest, and Conflict if it was deleted."""
    found = tx.tenants.find(name)
    if found is None or found.state is TenantState.DELETED:
        create_tenant(tx, name, "", now)


def get_key(tx: Transaction, tenant: str, key_id: str, param: str = "id") -> ApiKey:
    """Raises NotFound, also for another tenant's key."""
    get_tenant(tx, tenant)
    found = tx.keys.find(key_id)
    if found is None or found.tenant_id != tenant:
        raise NotFound(f"No such ApiKey object: {key_id}", param=param)
    return found


def rotate_key(tx: Transaction, old: ApiKey, overlap: timedelta, now: datetime) -> CreatedKey:
    """Make a key that replaces this one, with its name, scopes and length of life. The old one is valid for
    the overlap, unless it expires before. Raises Conflict for a key that is not valid or was rotated.
    """
    until = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
    key = new_key()
    new = ApiKey.of(
        key,
        tenant_id=old.tenant_id,
        name=old.name,
        created_at=now,
        expires_at=None if old.expires_at is None else now + (old.expires_at - old.created_at),
        scopes=old.scopes,
    )
    if not old.is_valid(now) or not tx.keys.replace(old.id, new.id, until):
        raise Conflict(
            f"Key {old.id} cannot be rotated: it has expired, or was revoked or rotated before.",
            code="key_not_rotatable",
        )
    tx.keys.insert(new)
    return CreatedKey(new, key)


def revoke_key(tx: Transaction, key: ApiKey, now: datetime) -> ApiKey:
    """Revoke a key; a repeat changes nothing."""
    tx.keys.revoke(key.id, now)
    found = tx.keys.find(key.id)
    assert found is not None, "keys are never deleted"
    return found
