"""/v1/tenants/{tenant}/keys: made with scopes, rotated with an overlap, revoked at once."""

import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from api import access
from api.app import create_app
from nightshift.tenants.keys import key_id
from tests.integration.api.asking import bearer
from tests.integration.api.serving import serving

KEYS = "/v1/tenants/acme/keys"
REVOKED_WITHIN_S = 1.0


@pytest.fixture(autouse=True)
def _acme(admin: httpx.Client) -> None:
    admin.post("/v1/tenants", json={"name": "acme"})


def status_with(client: httpx.Client, key: str, path: str = "/v1/jobs") -> int:
    return client.get(path, headers=bearer(key)).status_code


def test_a_key_is_shown_once_and_does_what_its_scopes_say(admin):
    made = admin.post(KEYS, json={"name": "dashboard", "scopes": ["read"], "expires_after_s": 60})
    shown = made.json()
    key = shown.pop("key")

    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert (shown["tenant"], shown["scopes"], shown["last4"]) == ("acme", ["read"], key[-4:])
    assert shown["expires_at"] - shown["created_at"] == 60
    assert admin.get(f"{KEYS}/{shown['id']}").json() == shown
    assert admin.get(KEYS).json()["data"] == [shown]
    assert status_with(admin, key) == 200
    assert admin.post("/v1/jobs", json={}, headers=bearer(key)).status_code == 403


def test_without_scopes_a_key_may_submit_and_read_and_not_administer(admin):
    made = admin.post(KEYS, json={}).json()

    assert made["scopes"] == ["read", "submit"]
    assert status_with(admin, made["key"], "/v1/tenants") == 403


def test_a_body_that_is_wrong_is_refused_by_the_fields_name(admin):
    for body, param in (
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes[0]"),
        ({"expires_after_s": 0}, "expires_after_s"),
        ({"name": "x" * 129}, "name"),
        ({"tenant": "other"}, "tenant"),
    ):
        refused = admin.post(KEYS, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), body


def rotated(admin: httpx.Client, overlap_s: int, **fields: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """A key and its successor."""
    old = admin.post(KEYS, json=fields).json()
    return old, admin.post(f"{KEYS}/{old['id']}/rotate", json={"overlap_s": overlap_s}).json()


def test_both_keys_are_valid_during_the_overlap_of_a_rotation(admin):
    old, new = rotated(admin, 600, name="app", scopes=["read"], expires_after_s=90_000)

    assert [status_with(admin, key["key"]) for key in (old, new)] == [200, 200]
    after = admin.get(f"{KEYS}/{old['id']}").json()
    assert after["replaced_by"] == new["id"]
    assert 595 <= after["expires_at"] - new["created_at"] <= 600
    assert (new["name"], new["scopes"]) == ("app", ["read"])
    assert new["expires_at"] - new["created_at"] == 90_000


def test_the_old_key_is_refused_after_the_overlap(admin):
    assert [status_with(admin, key["key"]) for key in rotated(admin, 0)] == [401, 200]


def test_a_key_is_rotated_once_and_not_after_it_was_revoked(admin):
    rotated, revoked = (admin.post(KEYS, json={}).json()["id"] for _ in range(2))
    admin.post(f"{KEYS}/{rotated}/rotate", json={})
    admin.post(f"{KEYS}/{revoked}/revoke")

    for id in (rotated, revoked):
        refused = admin.post(f"{KEYS}/{id}/rotate", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "key_not_rotatable")


def test_a_rotation_needs_an_overlap_that_is_possible(admin):
    made = admin.post(KEYS, json={}).json()
    for overlap_s in (-1, 31 * 86_400, "long"):
        refused = admin.post(f"{KEYS}/{made['id']}/rotate", json={"overlap_s": overlap_s})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "overlap_s")


def test_a_revoked_key_is_refused_within_a_second_by_every_process(admin, settings, monkeypatch):
    passed_s, now_s = 0.0, time.monotonic()
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now_s + passed_s))
    made = admin.post(KEYS, json={}).json()
    with serving(create_app(settings)) as other_url:
        with httpx.Client(base_url=other_url, trust_env=False) as other:
            assert [status_with(client, made["key"]) for client in (admin, other)] == [200, 200]

            revoked = admin.post(f"{KEYS}/{made['id']}/revoke").json()
            passed_s = REVOKED_WITHIN_S

            assert [status_with(client, made["key"]) for client in (admin, other)] == [401, 401]
    assert revoked["revoked_at"] is not None


def test_another_tenants_key_is_not_found(admin, make_key, store):
    id = key_id(make_key("other"))

    for method, path in (("GET", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        assert admin.request(method, f"{KEYS}/{id}{path}", json={}).status_code == 404
    with store.snapshot() as tx:
        stored = tx.keys.find(id or "")
    assert stored.revoked_at is None


def test_keys_are_listed_in_pages_and_without_the_keys(admin):
    made = [admin.post(KEYS, json={}).json() for _ in range(3)]

    first = admin.get(KEYS, params={"limit": 2}).json()
    rest = admin.get(KEYS, params={"limit": 2, "after": first["last_id"]}).json()

    assert {shown["id"] for shown in first["data"] + rest["data"]} == {key["id"] for key in made}
    assert not any(key["key"] in str(first) + str(rest) for key in made)
