"""/v1/tenants: administrators create, list, change, disable and delete tenants."""

import httpx
import pytest

from nightshift.jobs import JobState
from nightshift.lifecycle import transitions
from tests.helpers.fakes import a_file
from tests.integration.api.conftest import TIMEOUT_S


@pytest.fixture
def acme(admin: httpx.Client) -> dict[str, object]:
    made = admin.post("/v1/tenants", json={"name": "acme", "description": "the first"})
    assert made.status_code == 201
    shown: dict[str, object] = made.json()
    return shown


def with_key(admin: httpx.Client, tenant: str) -> httpx.Client:
    key = admin.post(f"/v1/tenants/{tenant}/keys", json={}).json()["key"]
    return httpx.Client(
        base_url=admin.base_url,
        headers={"authorization": f"Bearer {key}"},
        timeout=TIMEOUT_S,
        trust_env=False,
    )


def test_a_tenant_is_shown_as_it_was_created(admin, acme):
    shown = admin.get("/v1/tenants/acme").json()
    del shown["limits"]
    assert shown == acme
    assert {
        name: acme[name] for name in ("id", "object", "name", "description", "status", "disabled_at")
    } == {
        "id": "acme",
        "object": "tenant",
        "name": "acme",
        "description": "the first",
        "status": "active",
        "disabled_at": None,
    }


def test_tenants_are_listed_in_pages(admin):
    for name in ("a", "b", "c"):
        admin.post("/v1/tenants", json={"name": name})

    first = admin.get("/v1/tenants", params={"limit": 2}).json()
    rest = admin.get("/v1/tenants", params={"limit": 2, "after": first["last_id"]}).json()

    assert sorted(shown["id"] for shown in first["data"] + rest["data"]) == ["a", "b", "c"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x\n"}, "name"),
        ({"name": "Acme"}, "name"),
        ({"name": "a", "description": "x" * 513}, "description"),
        ({"name": "a", "colour": "red"}, "colour"),
    ],
)
def test_a_body_that_is_wrong_is_refused_by_the_fields_name(admin, body, param):
    refused = admin.post("/v1/tenants", json=body)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_name_is_given_once(admin, acme):
    again = admin.post("/v1/tenants", json={"name": "acme"})
    admin.delete("/v1/tenants/acme")
    after = admin.post("/v1/tenants", json={"name": "acme"})

    assert (again.status_code, again.json()["error"]["code"]) == (409, "tenant_exists")
    assert (after.status_code, after.json()["error"]["code"]) == (409, "tenant_deleted")


def test_a_change_leaves_what_it_does_not_name(admin, acme):
    changed = admin.patch("/v1/tenants/acme", json={"description": "the only"}).json()

    assert changed == acme | {"description": "the only"}


def test_a_disabled_tenants_keys_are_refused_until_it_is_enabled(admin, acme):
    with with_key(admin, "acme") as tenant:
        shown = admin.patch("/v1/tenants/acme", json={"disabled": True}).json()
        refused = tenant.get("/v1/jobs")
        admin.patch("/v1/tenants/acme", json={"disabled": False})
        served = tenant.get("/v1/jobs")

    assert (shown["status"], shown["disabled_at"] is not None) == ("disabled", True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_disabled")
    assert served.status_code == 200


def test_a_deleted_tenant_is_not_found_and_its_keys_are_refused(admin, acme):
    with with_key(admin, "acme") as tenant:
        deleted = admin.delete("/v1/tenants/acme")
        assert tenant.get("/v1/jobs").status_code == 401

    assert deleted.json() == {"id": "acme", "object": "tenant", "deleted": True}
    assert admin.get("/v1/tenants").json()["data"] == []
    for method, path in (
        ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/keys"), ("POST", "/keys")
    ):  # fmt: skip
        assert admin.request(method, f"/v1/tenants/acme{path}", json={}).status_code == 404


def test_the_files_of_a_deleted_tenant_expire(admin, store, acme):
    with store.transaction() as tx:
        for tenant_id in ("acme", "other"):
            tx.files.insert(a_file(tenant_id=tenant_id))

    assert admin.delete("/v1/tenants/acme").status_code == 200

    with store.snapshot() as tx:
        assert [file.tenant_id for file in tx.files.expired(tx.now(), limit=9)] == ["acme"]


def test_a_tenant_with_jobs_that_have_not_ended_is_not_deleted(admin, acme, store):
    with with_key(admin, "acme") as tenant:
        uploaded = tenant.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}\n")})
        batch = {
            "input_file_id": uploaded.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        job_id = tenant.post("/v1/batches", json=batch).json()["id"].replace("batch_", "job_")
    refused = admin.delete("/v1/tenants/acme")
    with store.transaction() as tx:
        transitions.finish(tx, tx.jobs.fetch(job_id), JobState.FAILED, tx.now())

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tenant_has_jobs")
    assert admin.delete("/v1/tenants/acme").status_code == 200


def test_the_tenant_of_the_installation_is_not_deleted(admin):
    admin.post("/v1/tenants", json={"name": "default"})

    assert admin.delete("/v1/tenants/default").status_code == 409
