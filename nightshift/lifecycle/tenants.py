"""Administration of tenants and their keys, for the API and the command line."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Transaction
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.keys import (
    DEFAULT_SCOPES,
    DEFAULT_TENANT,
    ApiKey,
    Scope,
    check_tenant_name,
    new_key,
)
from nightshift.tenants.quotas import Quotas, check_quotas
from nightshift.tenants.tenant import Tenant, TenantState

QuotaChanges = Mapping[str, int | None]  # by name; None: the default

_UNCHANGED: Final[QuotaChanges] = {}
OVERLAP_S: Final = 86_400  # for which a rotated key is still valid
OVERLAP_MAX_S: Final = 30 * 86_400


@dataclass(frozen=True)
class CreatedKey:
    """A new key as it is stored, and the key itself, which is shown once."""

    stored: ApiKey
    key: str


def get_tenant(tx: Transaction, name: str, param: str = "tenant") -> Tenant:
    """A tenant that was not deleted. Raises NotFound."""
    tenant = tx.tenants.find(name)
    if tenant is None or tenant.state is TenantState.DELETED:
        raise NotFound(f"No such Tenant object: {name}", param=param)
    return tenant


def get_key(tx: Transaction, tenant: str, key_id: str, param: str = "id") -> ApiKey:
    """Raises NotFound, also for another tenant's key."""
    get_tenant(tx, tenant)
    key = tx.keys.find(key_id)
    if key is None or key.tenant_id != tenant:
        raise NotFound(f"No such ApiKey object: {key_id}", param=param)
    return key


class Administration:
    """Changes to tenants and keys, one in each method, in the caller's open transaction with its entry in the
    audit log.
    """

    def __init__(self, tx: Transaction, actor: Actor) -> None:
        self._tx = tx
        self._actor = actor
        self._now = tx.now()

    def create_tenant(
        self,
        name: str,
        description: str = "",
        priority_ceiling: PriorityClass = PriorityClass.INTERACTIVE,
        quotas: QuotaChanges = _UNCHANGED,
    ) -> Tenant:
        """`quotas`: by name. Raises InvalidRequest, and Conflict if there is or was a tenant of this name."""
        check_tenant_name(name, param="name")
        check_quotas(quotas)
        new = Tenant(
            id=name,
            description=description,
            created_at=self._now,
            priority_ceiling=priority_ceiling,
            quotas=Quotas.from_json(quotas),
        )
        if self._tx.tenants.insert(new):
            self._record(Action.TENANT_CREATED, name)
            return new
        known = self._tx.tenants.find(name)
        if known is not None and known.state is TenantState.DELETED:
            raise Conflict(
                f"A tenant '{name}' was deleted, and what it had may still be there: use another name.",
                param="name",
                code="tenant_deleted",
            )
        raise Conflict(f"There is a tenant '{name}' already.", param="name", code="tenant_exists")

    def ensure_tenant(self, name: str) -> None:
        """Creates a tenant that does not exist. Raises InvalidRequest, and Conflict if it was deleted."""
        known = self._tx.tenants.find(name)
        if known is None or known.state is TenantState.DELETED:
            self.create_tenant(name)

    def update_tenant(
        self,
        name: str,
        *,
        description: str | None = None,
        disabled: bool | None = None,
        priority_ceiling: PriorityClass | None = None,
        quotas: QuotaChanges = _UNCHANGED,
    ) -> Tenant:
        """Changes what is given. `quotas`: by name; None: the default. Raises NotFound, InvalidRequest."""
        check_quotas(quotas)
        self._tx.tenants.lock(name)  # quotas are stored together: of two changes at once none is lost
        before = get_tenant(self._tx, name)
        details: JsonObject = {}
        if description is not None:
            self._tx.tenants.describe(name, description)
            details["description"] = description
        if disabled is not None:
            self._tx.tenants.disable(name, self._now) if disabled else self._tx.tenants.enable(name)
            details["disabled"] = disabled
        if priority_ceiling is not None:
            self._tx.tenants.limit_priority(name, priority_ceiling)
            details["priority_ceiling"] = priority_ceiling
        if quotas:
            self._tx.tenants.limit(name, before.quotas.changed(quotas))
            details["quotas"] = dict(quotas)
        if details:
            self._record(Action.TENANT_UPDATED, name, details=details)
        return get_tenant(self._tx, name)

    def delete_tenant(self, name: str) -> None:
        """Deletes a tenant: revokes its keys, deletes its schedules and lets its files expire; its name is
        not given again. Raises NotFound, and Conflict while a job of the tenant has not ended, and for the
        tenant `default`, which `nightshift up` makes keys of.
        """
        get_tenant(self._tx, name)
        if name == DEFAULT_TENANT:
            raise Conflict(
                f"Tenant '{name}' cannot be deleted; it can be disabled.", code="tenant_is_default"
            )
        if self._tx.load.has_unfinished(name):
            raise Conflict(
                f"Tenant '{name}' has jobs that have not ended: cancel them first.", code="tenant_has_jobs"
            )
        self._tx.keys.revoke_all(name, self._now)
        self._tx.files.expire_all(name, self._now)
        self._tx.schedules.delete(name)
        self._tx.tenants.mark_deleted(name, self._now)
        self._record(Action.TENANT_DELETED, name)

    def create_key(
        self,
        tenant: str,
        *,
        name: str = "",
        scopes: Collection[Scope] = DEFAULT_SCOPES,
        lasts: timedelta | None = None,
    ) -> CreatedKey:
        """`lasts`: until it expires; None: for good. Raises NotFound."""
        get_tenant(self._tx, tenant)
        created = self._insert_key(tenant, name, scopes, lasts)
        self._record(Action.KEY_CREATED, tenant, created.stored.id, {"name": name, "scopes": sorted(scopes)})
        return created

    def rotate_key(self, old: ApiKey, overlap: timedelta) -> CreatedKey:
        """Makes a key that replaces this one, with its name, scopes and length of life. The old one is valid
        for the overlap, unless it expires before. Raises Conflict for one that is not valid or was rotated.
        """
        until = self._now + overlap
        if old.expires_at is not None:
            until = min(old.expires_at, until)
        lasts = None if old.expires_at is None else old.expires_at - old.created_at
        created = self._insert_key(old.tenant_id, old.name, old.scopes, lasts)
        if not old.is_valid(self._now) or not self._tx.keys.replace(old.id, created.stored.id, until):
            raise Conflict(
                f"Key {old.id} cannot be rotated: it has expired, or was revoked or rotated before.",
                code="key_not_rotatable",
            )
        details = {"replaced_by": created.stored.id, "overlap_s": int(overlap.total_seconds())}
        self._record(Action.KEY_ROTATED, old.tenant_id, old.id, details)
        return created

    def revoke_key(self, key: ApiKey) -> ApiKey:
        """Revokes a key; a repeat changes nothing."""
        if self._tx.keys.revoke(key.id, self._now):
            self._record(Action.KEY_REVOKED, key.tenant_id, key.id)
        revoked = self._tx.keys.find(key.id)
        assert revoked is not None, "keys are never deleted"
        return revoked

    def _insert_key(
        self, tenant: str, name: str, scopes: Collection[Scope], lasts: timedelta | None
    ) -> CreatedKey:
        key = new_key()
        expires_at = None if lasts is None else self._now + lasts
        stored = ApiKey.from_key(
            key,
            tenant_id=tenant,
            name=name,
            created_at=self._now,
            expires_at=expires_at,
            scopes=scopes,
        )
        self._tx.keys.insert(stored)
        return CreatedKey(stored, key)

    def _record(
        self, action: Action, tenant: str, object_id: str | None = None, details: JsonObject | None = None
    ) -> None:
        self._tx.audit.record(self._actor, action, tenant, self._now, object_id=object_id, details=details)
