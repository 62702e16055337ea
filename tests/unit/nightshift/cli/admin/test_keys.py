from pathlib import Path

import pytest

from nightshift.cli.session import data_settings
from nightshift.store import Store
from nightshift.tenants.keys import key_id
from tests.helpers.databases import migrated_sqlite


@pytest.fixture
def store(data_dir: Path):
    """The installation's database, set up."""
    database = migrated_sqlite(data_settings().data_dir / "nightshift.db")
    yield Store(database)
    database.close()


def test_a_key_is_printed_once_and_only_its_hash_is_kept(nightshift, store):
    key = nightshift("keys", "create", "--name", "laptop").out.strip()

    with store.snapshot() as tx:
        [kept] = tx.keys.list()
        assert kept.admits(key, tx.now())
    assert (kept.id, kept.name, kept.tenant_id, kept.expires_at) == (key_id(key), "laptop", "default", None)
    assert key not in repr(kept)


def test_a_key_may_be_another_tenants_and_may_expire(nightshift, store):
    made = nightshift("keys", "create", "--tenant", "acme", "--days", "30", "--json").json
    with store.snapshot() as tx:
        [kept] = tx.keys.list("acme")
    assert (kept.expires_at - kept.created_at).days == 30
    assert made["id"] == kept.id
    assert made["key"].startswith("ns_live_")


@pytest.mark.parametrize("tenant", ["a/b", "../../x", "", "Acme", "a" * 33, "a b", "é", "a\n"])
def test_a_tenants_name_that_cannot_be_part_of_a_path_is_refused(nightshift, store, tenant: str):
    ended = nightshift("keys", "create", "--tenant", tenant)

    assert ended.code != 0
    assert "tenant" in ended.err
    with store.snapshot() as tx:
        assert tx.keys.list() == []


def test_listings_show_no_key(nightshift, store):
    key = nightshift("keys", "create", "--name", "laptop").out.strip()
    table = nightshift("keys", "list").out
    assert "laptop" in table
    assert key not in table
    assert [listed["last4"] for listed in nightshift("keys", "list", "--json").json] == [key[-4:]]
    assert nightshift("keys", "list", "--tenant", "nobody", "--json").json == []


def test_a_revoked_key_is_refused(nightshift, store):
    key = nightshift("keys", "create").out.strip()

    assert nightshift("keys", "revoke", key_id(key)).code == 0

    with store.snapshot() as tx:
        assert not tx.keys.find(key_id(key)).admits(key, tx.now())


def test_revoking_what_is_not_there_fails(nightshift, store):
    ended = nightshift("keys", "revoke", "k3v9x1qz")
    assert (ended.code, ended.err) == (1, "nightshift: id: there is no key k3v9x1qz that could be revoked\n")


def test_without_a_schema_the_operator_is_told_what_to_run(nightshift, data_dir):
    data_dir.mkdir()
    (data_dir / "nightshift.db").touch()

    ended = nightshift("keys", "list")
    assert ended.code == 1
    assert "python -m nightshift.store.databases.migrate" in ended.err
