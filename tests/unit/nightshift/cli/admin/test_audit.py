from tests.helpers.fakes import a_worker


def test_what_commands_do_is_logged_under_the_user_of_the_machine(nightshift, store, monkeypatch):
    monkeypatch.setenv("LOGNAME", "alice")
    key = nightshift("keys", "create", "--tenant", "acme", "--name", "app", "--json").json
    nightshift("keys", "revoke", key["id"])
    nightshift("tenants", "update", "acme", "--disable")
    nightshift("tenants", "delete", "acme")

    shown = nightshift("audit", "--tenant", "acme", "--json").json

    assert [entry["action"] for entry in shown] == [
        "tenant.deleted", "tenant.updated", "key.revoked", "key.created", "tenant.created"
    ]  # fmt: skip
    assert {entry["actor"] for entry in shown} == {"user:alice"}
    table = nightshift("audit").out
    assert f"key.revoked     acme    {key['id']}" in table
    assert key["key"] not in table
    assert len(nightshift("audit", "--limit", "2", "--json").json) == 2


def test_a_drain_is_logged_and_belongs_to_no_tenant(nightshift, store):
    worker = a_worker()
    with store.transaction() as tx:
        tx.workers.register(worker)

    assert nightshift("workers", "drain", worker.id).code == 0

    [entry] = nightshift("audit", "--action", "worker.drained", "--json").json
    assert (entry["object_id"], entry["tenant"]) == (worker.id, None)
