import pytest

from nightshift.tenants.keys import Scope, key_id
from tests.helpers.fakes import an_api_key


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(nightshift, store):
    key = nightshift("keys", "create", "--name", "laptop").out.strip()

    with store.snapshot() as tx:
        [kept] = tx.keys.list()
        assert kept.admits(key, tx.now())
    assert (kept.id, kept.name, kept.tenant_id, kept.expires_at) == (key_id(key), "laptop", "default", None)
    assert key not in repr(kept)

    table = nightshift("keys", "list").out
    assert "laptop" in table
    assert key not in table
    assert [listed["last4"] for listed in nightshift("keys", "list", "--json").json] == [key[-4:]]
    assert nightshift("keys", "list", "--tenant", "nobody", "--json").json == []

    assert nightshift("keys", "revoke", key_id(key)).code == 0
    with store.snapshot() as tx:
        assert not tx.keys.find(key_id(key)).admits(key, tx.now())


def test_a_key_may_be_another_tenants_and_may_expire(nightshift, store):
    made = nightshift("keys", "create", "--tenant", "acme", "--days", "30", "--json").json
    with store.snapshot() as tx:
        [kept] = tx.keys.list("acme")
    assert (kept.expires_at - kept.created_at).days == 30
    assert made["id"] == kept.id
    assert made["key"].startswith("ns_live_")


def test_a_key_has_the_scopes_it_was_made_with(nightshift, store):
    nightshift("keys", "create", "--scope", "read", "--scope", "admin")
    nightshift("keys", "create", "--tenant", "acme")

    with store.snapshot() as tx:
        first, second = sorted(tx.keys.list(), key=lambda key: Scope.ADMIN not in key.scopes)
        assert tx.tenants.find("acme") is not None
    assert first.scopes == {Scope.READ, Scope.ADMIN}
    assert second.scopes == {Scope.READ, Scope.SUBMIT}
    assert "admin,read" in nightshift("keys", "list").out


def test_a_rotated_key_is_valid_for_the_overlap(nightshift, store):
    old = nightshift("keys", "create", "--name", "app", "--json").json

    new = nightshift("keys", "rotate", old["id"], "--overlap-hours", "2", "--json").json

    with store.snapshot() as tx:
        replaced, made = tx.keys.find(old["id"]), tx.keys.find(new["id"])
        assert made.admits(new["key"], tx.now())
    assert replaced.replaced_by == made.id
    assert (replaced.expires_at - made.created_at).total_seconds() == 7200
    assert (made.name, made.expires_at) == ("app", None)


def test_keys_of_tenants_without_a_row_go_on_working(nightshift, store):
    """Processes of the release before make such keys."""
    kept = an_api_key(tenant_id="earlier")
    with store.transaction() as tx:
        tx.keys.insert(kept)

    assert [listed["tenant_id"] for listed in nightshift("keys", "list", "--json").json] == ["earlier"]
    assert nightshift("keys", "revoke", kept.id).code == 0


@pytest.mark.parametrize("command", [("keys", "create", "--tenant"), ("tenants", "create")], ids=" ".join)
@pytest.mark.parametrize("tenant", ["a/b", "../../x", "", "Acme", "a" * 33, "a b", "é", "a\n"])
def test_a_tenants_name_that_cannot_be_part_of_a_path_is_refused(nightshift, store, command, tenant):
    ended = nightshift(*command, tenant)

    assert ended.code != 0
    assert "tenant" in ended.err
    with store.snapshot() as tx:
        assert tx.keys.list() == []
        assert tx.tenants.find(tenant) is None


def test_a_key_that_is_not_there_cannot_be_revoked_or_rotated(nightshift, store):
    ended = nightshift("keys", "revoke", "k3v9x1qz")
    assert (ended.code, ended.err) == (1, "nightshift: id: there is no key k3v9x1qz that could be revoked\n")
    assert nightshift("keys", "rotate", "unknown1").code == 1


def test_without_a_schema_the_operator_is_told_what_to_run(nightshift, data_dir):
    data_dir.mkdir()
    (data_dir / "nightshift.db").touch()

    ended = nightshift("keys", "list")
    assert ended.code == 1
    assert "python -m nightshift.store.databases.migrate" in ended.err
