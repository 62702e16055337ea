"""/v1/tenants: administrators create, list, change, disable and delete tenants."""

from collections.abc import Iterator

import httpx
import pytest

from tests.helpers.fakes import a_file, submit
from tests.integration.api.asking import end_job
from tests.integration.api.conftest import plain_http

WRONG_QUOTAS = (0, -1, 1.5, "9", True, 2**53)


@pytest.fixture
def acme(admin: httpx.Client) -> dict[str, object]:
    made = admin.post("/v1/tenants", json={"name": "acme", "description": "the first"})
    assert made.status_code == 201
    shown: dict[str, object] = made.json()
    return shown


@pytest.fixture
def tenant(admin: httpx.Client, acme: dict[str, object]) -> Iterator[httpx.Client]:
    """A client of this tenant, whose key an administrator made."""
    key = admin.post("/v1/tenants/acme/keys", json={}).json()["key"]
    with plain_http(str(admin.base_url), key) as client:
        yield client


def test_a_tenant_is_shown_as_it_was_created(admin, acme):
    shown = admin.get("/v1/tenants/acme").json()
    del shown["limits"]
    assert shown == acme
    expected = {"id": "acme", "object": "tenant", "name": "acme", "description": "the first"}
    assert acme == acme | expected | {"status": "active", "disabled_at": None}


def test_tenants_are_listed_in_pages(admin):
    for name in ("a", "b", "c"):
        admin.post("/v1/tenants", json={"name": name})

    first = admin.get("/v1/tenants", params={"limit": 2}).json()
    rest = admin.get("/v1/tenants", params={"limit": 2, "after": first["last_id"]}).json()

    assert sorted(shown["id"] for shown in first["data"] + rest["data"]) == ["a", "b", "c"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


def test_a_body_that_is_wrong_is_refused_by_the_fields_name(admin):
    for body, param in (
        ({}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x\n"}, "name"),
        ({"name": "Acme"}, "name"),
        ({"name": "a", "description": "x" * 513}, "description"),
        ({"name": "a", "colour": "red"}, "colour"),
        *(({"name": "a", "quotas": {"open_streams": n}}, "quotas.open_streams") for n in WRONG_QUOTAS),
    ):
        refused = admin.post("/v1/tenants", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), body


def test_a_name_is_given_once(admin, acme):
    again = admin.post("/v1/tenants", json={"name": "acme"})
    admin.delete("/v1/tenants/acme")
    after = admin.post("/v1/tenants", json={"name": "acme"})

    assert (again.status_code, again.json()["error"]["code"]) == (409, "tenant_exists")
    assert (after.status_code, after.json()["error"]["code"]) == (409, "tenant_deleted")


def test_a_change_leaves_what_it_does_not_name(admin, acme):
    changed = admin.patch("/v1/tenants/acme", json={"description": "the only"}).json()

    assert changed == acme | {"description": "the only"}


def test_a_disabled_tenants_keys_are_refused_until_it_is_enabled(admin, tenant):
    shown = admin.patch("/v1/tenants/acme", json={"disabled": True}).json()
    refused = tenant.get("/v1/jobs")
    admin.patch("/v1/tenants/acme", json={"disabled": False})
    served = tenant.get("/v1/jobs")

    assert (shown["status"], shown["disabled_at"] is not None) == ("disabled", True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_disabled")
    assert served.status_code == 200


def test_a_deleted_tenant_is_not_found_and_its_keys_are_refused(admin, tenant):
    deleted = admin.delete("/v1/tenants/acme")

    assert tenant.get("/v1/jobs").status_code == 401
    assert deleted.json() == {"id": "acme", "object": "tenant", "deleted": True}
    assert admin.get("/v1/tenants").json()["data"] == []
    for route in ("GET ", "PATCH ", "DELETE ", "GET /keys", "POST /keys"):
        method, _, path = route.partition(" ")
        assert admin.request(method, f"/v1/tenants/acme{path}", json={}).status_code == 404, route


def test_the_files_of_a_deleted_tenant_expire(admin, store, acme):
    with store.transaction() as tx:
        for tenant_id in ("acme", "other"):
            tx.files.insert(a_file(tenant_id=tenant_id))

    assert admin.delete("/v1/tenants/acme").status_code == 200

    with store.snapshot() as tx:
        assert [file.tenant_id for file in tx.files.expired(tx.now(), limit=9)] == ["acme"]


def test_a_tenant_with_jobs_that_have_not_ended_is_not_deleted(admin, acme, store):
    job = submit(store, tenant_id="acme")
    refused = admin.delete("/v1/tenants/acme")
    end_job(store, job.id)

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tenant_has_jobs")
    assert admin.delete("/v1/tenants/acme").status_code == 200


def test_the_tenant_of_the_installation_is_not_deleted(admin):
    admin.post("/v1/tenants", json={"name": "default"})

    assert admin.delete("/v1/tenants/default").status_code == 409
