from pathlib import Path

import pytest

from nightshift.cli.session import data_settings
from nightshift.store import Store
from nightshift.tenants.keys import Scope, key_id
from tests.helpers.databases import migrated_sqlite
from tests.helpers.fakes import an_api_key


@pytest.fixture
def store(data_dir: Path):
    """The installation's database, set up."""
    database = migrated_sqlite(data_settings().data_dir / "nightshift.db")
    yield Store(database)
    database.close()


def test_a_tenant_is_created_shown_listed_and_changed(nightshift, store):
    made = nightshift("tenants", "create", "acme", "--description", "the first", "--json").json
    assert (made["name"], made["status"], made["description"]) == ("acme", "active", "the first")

    assert nightshift("tenants", "show", "acme", "--json").json == made
    assert nightshift("tenants", "list", "--json").json == [made]
    changed = nightshift("tenants", "update", "acme", "--disable", "--json").json
    assert (changed["status"], changed["description"]) == ("disabled", "the first")
    assert "disabled" in nightshift("tenants", "list").out
    assert nightshift("tenants", "update", "acme", "--enable", "--json").json == made


def test_a_deleted_tenant_is_gone_with_its_keys(nightshift, store):
    key = nightshift("keys", "create", "--tenant", "acme").out.strip()

    assert nightshift("tenants", "delete", "acme").code == 0

    assert nightshift("tenants", "show", "acme").err == (
        "nightshift: No such Tenant object: acme; `nightshift tenants list` shows those there are\n"
    )
    assert nightshift("keys", "create", "--tenant", "acme").code == 1
    with store.snapshot() as tx:
        assert not tx.keys.find(key_id(key)).admits(key, tx.now())


def test_a_tenant_gets_quotas_of_its_own_and_the_defaults_again(nightshift, store):
    nightshift("tenants", "create", "acme", "--quota", "open_streams=4", "--quota", "requests_per_minute=60")
    assert "requests_per_minute=60,open_streams=4" in nightshift("tenants", "list").out

    changed = nightshift("tenants", "update", "acme", "--quota", "open_streams=default", "--json").json

    assert changed["quotas"] == {"requests_per_minute": 60}


def test_an_update_of_nothing_is_a_mistake_and_not_recorded(nightshift, store):
    nightshift("tenants", "create", "acme")

    ended = nightshift("tenants", "update", "acme")

    assert (ended.code, ended.out) == (2, "")
    assert "--quota" in ended.err
    assert len(nightshift("audit", "--json").json) == 1


@pytest.mark.parametrize("quota", ["open_streams=0", "open_streams=-1", "open_streams", "streams=1"])
def test_a_quota_that_makes_no_sense_is_refused(nightshift, store, quota: str):
    ended = nightshift("tenants", "create", "acme", "--quota", quota)

    assert ended.code == 1
    assert "streams" in ended.err


@pytest.mark.parametrize("name", ["a/b", "../x", "Acme", "a" * 33])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(nightshift, store, name: str):
    ended = nightshift("tenants", "create", name)

    assert ended.code == 1
    assert "name" in ended.err


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
    assert nightshift("keys", "rotate", "unknown1").code == 1


def test_keys_of_tenants_without_a_row_go_on_working(nightshift, store):
    """Processes of the release before make such keys."""
    kept = an_api_key(tenant_id="earlier")
    with store.transaction() as tx:
        tx.keys.insert(kept)

    assert [listed["tenant_id"] for listed in nightshift("keys", "list", "--json").json] == ["earlier"]
    assert nightshift("keys", "revoke", kept.id).code == 0


def test_a_tenants_priority_is_limited(nightshift, store):
    made = nightshift("tenants", "create", "acme", "--priority-ceiling", "standard", "--json").json
    changed = nightshift("tenants", "update", "acme", "--priority-ceiling", "background", "--json").json
    kept = nightshift("tenants", "update", "acme", "--description", "x", "--json").json

    assert [tenant["priority_ceiling"] for tenant in (made, changed, kept)] == [
        "standard", "background", "background"
    ]  # fmt: skip
