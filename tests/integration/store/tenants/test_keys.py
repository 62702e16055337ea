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


def test_a_key_is_found_by_its_public_part_and_admits_its_owner(store: Store, clock: FakeClock) -> None:
    key = new_key()
    keep(store, an_api_key(key, tenant_id="acme", expires_at=clock.now + timedelta(days=1)))

    with store.snapshot() as tx:
        stored = tx.keys.find(key_id(key) or "")
        assert stored is not None
        assert stored == an_api_key(key, tenant_id="acme", expires_at=clock.now + timedelta(days=1))
        assert stored.admits(key, tx.now())
        assert not stored.admits(new_key(), tx.now())
        assert tx.keys.find("unknown1") is None


def test_the_database_does_not_know_the_key(store: Store) -> None:
    key = new_key()
    keep(store, an_api_key(key))

    with store.database.read() as connection:
        [row] = connection.exec_driver_sql("SELECT * FROM api_key").all()

    assert key not in map(str, row)
    assert key.split("_")[-1] not in str(row)


def test_a_revoked_key_is_not_accepted_any_more(store: Store, clock: FakeClock) -> None:
    key = new_key()
    keep(store, an_api_key(key))
    id = key_id(key) or ""
    revoked_at = clock.advance(hours=1)

    with store.transaction() as tx:
        assert tx.keys.revoke("unknown1", tx.now()) is False
        assert tx.keys.revoke(id, tx.now()) is True
    clock.advance(hours=1)
    with store.transaction() as tx:
        assert tx.keys.revoke(id, tx.now()) is False  # the first time stays
        stored = tx.keys.find(id)

    assert stored is not None
    assert stored.revoked_at == revoked_at
    assert not stored.admits(key, clock.now)


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
