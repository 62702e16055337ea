"""GET /v1/audit: what was done to tenants and keys, by whom, and no secret."""

import httpx
import pytest

from nightshift.store import Store
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


def test_each_action_has_one_entry_with_its_actor(
    admin: httpx.Client, http: httpx.Client, done: list[str]
) -> None:
    entries = admin.get("/v1/audit").json()["data"]
    actor, tenants = (
        f"key:{key_id(client.headers['authorization'].removeprefix('Bearer '))}" for client in (admin, http)
    )
    old, new = (key_id(key) for key in done[:2])

    assert [(each["action"], each["tenant"], each["object_id"], each["details"]) for each in entries] == [
        ("tenant.deleted", "acme", None, {}),
        ("webhook_secret.created", "default", None, {}),
        ("key.revoked", "acme", new, {}),
        ("key.rotated", "acme", old, {"replaced_by": new, "overlap_s": 60}),
        ("key.created", "acme", old, {"name": "app", "scopes": ["read"]}),
        ("tenant.updated", "acme", None, {"disabled": True}),
        ("tenant.created", "acme", None, {}),
    ]
    assert {each["actor"] for each in entries if each["tenant"] == "acme"} == {actor}
    assert [each["actor"] for each in entries if each["tenant"] == "default"] == [tenants]


def test_no_secret_is_in_the_log(admin: httpx.Client, store: Store, done: list[str]) -> None:
    with store.database.read() as connection:
        rows = str(connection.exec_driver_sql("SELECT * FROM audit").all())

    for secret in done:
        assert secret not in rows
        assert secret[20:] not in rows


def test_a_change_of_nothing_has_no_entry(admin: httpx.Client) -> None:
    admin.post("/v1/tenants", json={"name": "acme"})

    assert admin.patch("/v1/tenants/acme", json={}).status_code == 200
    assert [each["action"] for each in admin.get("/v1/audit").json()["data"]] == ["tenant.created"]


def test_an_action_that_was_refused_has_no_entry(admin: httpx.Client) -> None:
    admin.post("/v1/tenants", json={"name": "acme"})
    key = admin.post(KEYS, json={}).json()["id"]
    admin.post(f"{KEYS}/{key}/rotate", json={})

    assert admin.post("/v1/tenants", json={"name": "acme"}).status_code == 409
    assert admin.post(f"{KEYS}/{key}/rotate", json={}).status_code == 409

    actions = [each["action"] for each in admin.get("/v1/audit").json()["data"]]
    assert actions == ["key.rotated", "key.created", "tenant.created"]


def test_the_log_is_listed_in_pages_and_by_tenant_and_action(admin: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        admin.post("/v1/tenants", json={"name": name})

    first = admin.get("/v1/audit", params={"limit": 2}).json()
    rest = admin.get("/v1/audit", params={"limit": 2, "after": first["last_id"]}).json()
    of_b = admin.get("/v1/audit", params={"tenant": "b", "action": "tenant.created"}).json()

    assert [each["tenant"] for each in first["data"] + rest["data"]] == ["c", "b", "a"]
    assert [each["tenant"] for each in of_b["data"]] == ["b"]
    assert admin.get("/v1/audit", params={"action": "key.created"}).json()["data"] == []
    for wrong in ({"after": "3"}, {"action": "tenant.eaten"}):
        refused = admin.get("/v1/audit", params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
