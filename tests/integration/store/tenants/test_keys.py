"""API keys and tenants' secrets, as they are stored."""

from datetime import timedelta

from nightshift.store import Store
from nightshift.tenants.keys import ApiKey, key_id, new_key
from tests.helpers.fakes import FakeClock, an_api_key
from tests.integration.store.racing import at_once, both_databases


def keep(store: Store, *keys: ApiKey) -> None:
    with store.transaction() as tx:
        for key in keys:
            tx.keys.insert(key)


def test_a_key_is_found_by_its_public_part_and_admits_its_owner_until_it_is_revoked(
    store: Store, clock: FakeClock
) -> None:
    key = new_key()
    id = key_id(key) or ""
    kept = an_api_key(key, tenant_id="acme", expires_at=clock.now + timedelta(days=1))
    keep(store, kept)

    with store.snapshot() as tx:
        assert (tx.keys.find(id), tx.keys.find("unknown1")) == (kept, None)
        assert kept.admits(key, tx.now())
        assert not kept.admits(new_key(), tx.now())
    with store.database.read() as connection:
        [row] = connection.exec_driver_sql("SELECT * FROM api_key").all()
    assert key.split("_")[-1] not in str(row), "the database does not know the key"

    revoked_at = clock.advance(hours=1)
    with store.transaction() as tx:
        assert [tx.keys.revoke(wanted, tx.now()) for wanted in ("unknown1", id)] == [False, True]
        assert tx.keys.revoke(id, clock.advance(hours=1)) is False, "the first time stays"
        revoked = tx.keys.find(id)
    assert revoked is not None
    assert revoked.revoked_at == revoked_at
    assert not revoked.admits(key, clock.now)


def test_the_operator_lists_one_tenants_keys_or_all(store: Store, clock: FakeClock) -> None:
    acme = an_api_key(tenant_id="acme")
    other = an_api_key(tenant_id="other", created_at=clock.now + timedelta(seconds=1))
    acme_later = an_api_key(tenant_id="acme", created_at=clock.now + timedelta(seconds=2))
    keep(store, acme_later, other, acme)

    with store.snapshot() as tx:
        assert tx.keys.list("acme") == [acme, acme_later]
        assert tx.keys.list() == [acme, other, acme_later]


@both_databases
def test_a_tenants_webhook_secret_is_made_once(store: Store) -> None:
    def keep_secret(secret: bytes) -> bool:
        with store.transaction() as tx:
            return tx.keys.keep_webhook_secret("default", secret, tx.now())

    kept = at_once(lambda: keep_secret(b"\x00first"), lambda: keep_secret(b"\xffsecond"))

    assert sorted(kept) == [False, True]
    with store.snapshot() as tx:
        assert tx.keys.webhook_secret("default") == (b"\x00first" if kept[0] else b"\xffsecond")
        assert tx.keys.webhook_secret("other") is None
