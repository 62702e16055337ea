"""A tenant's limits hold for requests that come at once, and of changes made at once none is lost."""

import pytest

from nightshift.errors import Conflict, TooManyRequests
from nightshift.jobs.files import LIFETIME
from nightshift.lifecycle import uploads
from nightshift.lifecycle.tenants import Administration
from nightshift.lifecycle.webhooks.endpoints import EndpointRegistry
from nightshift.outbound.webhook_endpoints import ENDPOINTS_MAX
from nightshift.store import Store, Transaction
from nightshift.tenants.audit import Actor
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.vault import Vault
from tests.helpers.fakes import an_upload
from tests.integration.store.racing import at_once, both_databases

TENANT = "alpha"
AT_ONCE = 6
VAULT = Vault("a key for tests")
ACTOR = Actor.of_service("test")


def register(tx: Transaction) -> None:
    registry = EndpointRegistry(tx, VAULT, TENANT, ACTOR)
    registry.create(name="one", url="https://a.example/", event_types=["*"])


def begin_upload(tx: Transaction, pending_max: int) -> None:
    now = tx.now()
    uploads.create(tx, an_upload(tenant_id=TENANT, created_at=now, expires_at=now + LIFETIME), pending_max)


@both_databases
def test_webhook_endpoints_registered_at_once_are_no_more_than_a_tenant_may_have(store: Store) -> None:
    for _ in range(ENDPOINTS_MAX - 2):
        store.run(register)

    def one_more() -> bool:
        try:
            store.run(register)
        except Conflict:
            return False
        return True

    assert sorted(at_once(*[one_more] * AT_ONCE)) == [False] * (AT_ONCE - 2) + [True] * 2
    with store.snapshot() as tx:
        assert tx.webhook_endpoints.count(TENANT) == ENDPOINTS_MAX


@both_databases
def test_uploads_begun_at_once_are_no_more_than_a_tenant_may_have(store: Store) -> None:
    def begin() -> bool:
        try:
            store.run(lambda tx: begin_upload(tx, pending_max=2))
        except TooManyRequests:
            return False
        return True

    assert sorted(at_once(*[begin] * AT_ONCE)) == [False] * (AT_ONCE - 2) + [True] * 2
    with pytest.raises(TooManyRequests):
        store.run(lambda tx: begin_upload(tx, pending_max=2))


@both_databases
def test_of_quotas_that_are_changed_at_once_none_is_lost(store: Store) -> None:
    store.run(lambda tx: Administration(tx, ACTOR).create_tenant(TENANT))
    quotas = {"requests_per_minute": 1, "stored_files": 2, "queued_rows": 3, "open_streams": 4}

    def set_quota(name: str, quota: int) -> None:
        store.run(lambda tx: Administration(tx, ACTOR).update_tenant(TENANT, quotas={name: quota}))

    at_once(*[lambda change=change: set_quota(*change) for change in quotas.items()])

    with store.snapshot() as tx:
        tenant = tx.tenants.find(TENANT)
    assert tenant is not None
    assert tenant.quotas == Quotas.from_json(quotas)
