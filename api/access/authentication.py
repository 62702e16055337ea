"""Authenticates API keys."""

import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool

from nightshift.errors import NotAuthenticated, TenantDisabled
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store, Transaction
from nightshift.tenants.keys import ApiKey, Scope, digest, key_id
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.tenant import Tenant, TenantState

KEY_CACHE_S: Final = 0.9  # a revoked key works for a second at most
KEY_CACHE_MAX: Final = 10_000

_SCHEME: Final = "bearer "


@dataclass(frozen=True)
class Caller:
    key_id: str
    tenant_id: str
    scopes: frozenset[Scope]
    priority_ceiling: PriorityClass
    quotas: Quotas


class Authenticator:
    """Checks keys against the database, and caches valid ones for `KEY_CACHE_S`."""

    def __init__(self, store: Store, default_quotas: Quotas) -> None:
        self._store = store
        self._default_quotas = default_quotas
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()  # by the key's digest

    async def caller(self, authorization: str | None) -> Caller:
        """The caller named by an Authorization header. Raises NotAuthenticated, TenantDisabled."""
        key = _bearer(authorization)
        key_sha256 = digest(key)
        good_until_s, caller = self._known.get(key_sha256, (0.0, None))
        if caller is None or time.monotonic() >= good_until_s:
            asked_s = time.monotonic()  # what is revoked while it is looked up counts from here
            caller = await run_in_threadpool(self._look_up, key)
            self._remember(key_sha256, caller, asked_s + KEY_CACHE_S)
        return caller

    def tenant_of(self, authorization: str | None) -> str | None:
        """The tenant of a key that was valid a while ago, without a look-up."""
        with suppress(NotAuthenticated):
            known = self._known.get(digest(_bearer(authorization)))
            return None if known is None else known[1].tenant_id
        return None

    def _look_up(self, key: str) -> Caller:
        public_id = key_id(key)
        if public_id is None:
            raise NotAuthenticated
        with self._store.snapshot() as tx:
            found = tx.keys.find(public_id)
            if found is None or not found.admits(key, tx.now()):
                raise NotAuthenticated
            return self.caller_with(tx, found)

    def caller_with(self, tx: Transaction, found: ApiKey) -> Caller:
        """The caller with this key, which was found to be valid. Raises NotAuthenticated, TenantDisabled."""
        tenant = tx.tenants.find(found.tenant_id)
        ceiling, quotas = PriorityClass.INTERACTIVE, self._default_quotas
        if tenant is not None:  # processes of the release before make keys of tenants without a row
            _check_tenant(tenant)
            ceiling, quotas = tenant.priority_ceiling, tenant.quotas.over(quotas)
        return Caller(found.id, found.tenant_id, found.scopes, ceiling, quotas)

    def _remember(self, key_sha256: str, caller: Caller, good_until_s: float) -> None:
        self._known[key_sha256] = (good_until_s, caller)
        self._known.move_to_end(key_sha256)
        while len(self._known) > KEY_CACHE_MAX:
            self._known.popitem(last=False)


def _check_tenant(tenant: Tenant) -> None:
    if tenant.state is TenantState.DELETED:
        raise NotAuthenticated
    if tenant.state is TenantState.DISABLED:
        raise TenantDisabled


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise NotAuthenticated("No API key was given: send it as 'Authorization: Bearer ns_live_…'.")
    if not authorization[: len(_SCHEME)].lower() == _SCHEME:
        raise NotAuthenticated("The Authorization header must be 'Bearer' and an API key.")
    return authorization[len(_SCHEME) :].strip()
