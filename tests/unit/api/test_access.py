"""Every route of the OpenAPI document names the scope that a key needs for it."""

import pytest

from api.access import scope_of
from api.app import create_app
from api.openapi import WITHOUT_KEY
from api.services.services import AppSettings
from nightshift.tenants.keys import Scope


def test_every_route_but_those_without_a_key_names_one_scope():
    paths = create_app(AppSettings()).openapi()["paths"]

    named = {
        (path, method): described.get("security")
        for path in paths
        for method, described in paths[path].items()
    }

    assert {path for (path, _), security in named.items() if security is None} == set(WITHOUT_KEY)
    for (path, method), security in named.items():
        assert security is None or security == [{"key": [scope_of(method.upper(), path)]}]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/jobs/{job_id}", Scope.READ),
        ("HEAD", "/v1/jobs/{job_id}", Scope.READ),
        ("GET", "/v1/webhooks/secret", Scope.SUBMIT),
        *((method, "/v1/batches/{batch_id}", Scope.SUBMIT) for method in ("POST", "PATCH", "DELETE", "PUT")),
        *((method, "/v1/tenants/{tenant}/keys", Scope.ADMIN) for method in ("GET", "POST", "DELETE")),
        ("GET", "/v1/audit", Scope.ADMIN),
    ],
)
def test_reading_changing_and_administering_need_scopes_of_their_own(method, path, scope):
    assert scope_of(method, path) is scope
