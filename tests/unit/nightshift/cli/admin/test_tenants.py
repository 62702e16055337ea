import pytest

from nightshift.tenants.keys import key_id


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


def test_a_tenants_priority_is_limited(nightshift, store):
    made = nightshift("tenants", "create", "acme", "--priority-ceiling", "standard", "--json").json
    changed = nightshift("tenants", "update", "acme", "--priority-ceiling", "background", "--json").json
    kept = nightshift("tenants", "update", "acme", "--description", "x", "--json").json

    ceilings = [tenant["priority_ceiling"] for tenant in (made, changed, kept)]
    assert ceilings == ["standard", "background", "background"]


def test_an_update_of_nothing_is_a_mistake_and_not_recorded(nightshift, store):
    nightshift("tenants", "create", "acme")

    ended = nightshift("tenants", "update", "acme")

    assert (ended.code, ended.out) == (2, "")
    assert "--quota" in ended.err
    assert len(nightshift("audit", "--json").json) == 1


@pytest.mark.parametrize("quota", ["open_streams=0", "open_streams=-1", "open_streams", "streams=1"])
def test_a_quota_that_makes_no_sense_is_refused(nightshift, store, quota):
    ended = nightshift("tenants", "create", "acme", "--quota", quota)

    assert ended.code == 1
    assert "streams" in ended.err
