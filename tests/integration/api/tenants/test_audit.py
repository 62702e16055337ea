"""GET /v1/audit: what was done to tenants and keys, by whom, and no secret."""

import httpx
import pytest

from nightshift.tenants.keys import key_id

KEYS = "/v1/tenants/acme/keys"


@pytest.fixture
def done(admin: httpx.Client, http: httpx.Client) -> list[str]:
    """One of each action; returns the secrets that were shown."""
    admin.post("/v1/tenants", json={"name": "acme", "description": "first"})
    admin.patch("/v1/tenants/acme", json={"disabled": True})
    made = admin.post(KEYS, json={"name": "app", "scopes": ["read"]}).json()
    rotated = admin.post(f"{KEYS}/{made['id']}/rotate", json={"overlap_s": 60}).json()
    for _ in range(2):
        admin.post(f"{KEYS}/{rotated['id']}/revoke")
        secret = http.get("/v1/webhooks/secret").json()["secret"]
    admin.delete("/v1/tenants/acme")
    return [made["key"], rotated["key"], secret]


def test_each_action_has_one_entry_with_its_actor(admin, http, done):
    entries = admin.get("/v1/audit").json()["data"]
    actor, tenants = (
        f"key:{key_id(client.headers['authorization'].removeprefix('Bearer '))}" for client in (admin, http)
    )
    old, new = (key_id(key) for key in done[:2])

    fields = ("action", "tenant", "object_id", "details")
    assert [tuple(entry[field] for field in fields) for entry in entries] == [
        ("tenant.deleted", "acme", None, {}),
        ("webhook_secret.created", "default", None, {}),
        ("key.revoked", "acme", new, {}),
        ("key.rotated", "acme", old, {"replaced_by": new, "overlap_s": 60}),
        ("key.created", "acme", old, {"name": "app", "scopes": ["read"]}),
        ("tenant.updated", "acme", None, {"disabled": True}),
        ("tenant.created", "acme", None, {}),
    ]
    assert {entry["actor"] for entry in entries if entry["tenant"] == "acme"} == {actor}
    assert [entry["actor"] for entry in entries if entry["tenant"] == "default"] == [tenants]


def test_no_secret_is_in_the_log(admin, store, done):
    with store.database.read() as connection:
        rows = str(connection.exec_driver_sql("SELECT * FROM audit").all())

    for secret in done:
        assert secret not in rows
        assert secret[20:] not in rows


def test_a_change_of_nothing_has_no_entry(admin):
    admin.post("/v1/tenants", json={"name": "acme"})

    assert admin.patch("/v1/tenants/acme", json={}).status_code == 200
    assert [entry["action"] for entry in admin.get("/v1/audit").json()["data"]] == ["tenant.created"]


def test_an_action_that_was_refused_has_no_entry(admin):
    admin.post("/v1/tenants", json={"name": "acme"})
    key = admin.post(KEYS, json={}).json()["id"]
    admin.post(f"{KEYS}/{key}/rotate", json={})

    assert admin.post("/v1/tenants", json={"name": "acme"}).status_code == 409
    assert admin.post(f"{KEYS}/{key}/rotate", json={}).status_code == 409

    actions = [entry["action"] for entry in admin.get("/v1/audit").json()["data"]]
    assert actions == ["key.rotated", "key.created", "tenant.created"]


def test_the_log_is_listed_in_pages_and_by_tenant_and_action(admin):
    for name in ("a", "b", "c"):
        admin.post("/v1/tenants", json={"name": name})

    first = admin.get("/v1/audit", params={"limit": 2}).json()
    rest = admin.get("/v1/audit", params={"limit": 2, "after": first["last_id"]}).json()
    of_b = admin.get("/v1/audit", params={"tenant": "b", "action": "tenant.created"}).json()

    assert [entry["tenant"] for entry in first["data"] + rest["data"]] == ["c", "b", "a"]
    assert [entry["tenant"] for entry in of_b["data"]] == ["b"]
    assert admin.get("/v1/audit", params={"action": "key.created"}).json()["data"] == []
    for wrong in ({"after": "3"}, {"action": "tenant.eaten"}):
        refused = admin.get("/v1/audit", params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
