"""A key does what its scopes name, on every route, and nothing else."""

import re

import httpx
import pytest

from nightshift.process.settings import DataSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import Scope
from tests.integration.api.conftest import SharedApi, insert_key
from tests.integration.api.declared import described_paths

NEEDED = {
    (method.upper(), path): operation["security"][0]["key"][0]
    for path, operations in described_paths().items()
    for method, operation in operations.items()
    if "security" in operation
}


@pytest.fixture(scope="module")
def keys(shared_api: SharedApi) -> dict[frozenset[Scope], str]:
    """Keys of one tenant: for each scope alone, and for all the others."""
    data = DataSettings(data_dir=shared_api.allowed.parent / "data")
    store = Store(Database(data.resolved_database_url))
    every = frozenset(Scope)
    sets = [frozenset({scope}) for scope in Scope] + [every - {scope} for scope in Scope]
    made = {scopes: insert_key(store, "scoped", scopes=scopes) for scopes in sets}
    store.close()
    return made


def answer_to(api: SharedApi, route: tuple[str, str], key: str) -> httpx.Response:
    method, path = route
    url = api.url + re.sub(r"\{[a-z_]+\}", "unknown", path)
    return httpx.request(method, url, headers={"authorization": f"Bearer {key}"}, trust_env=False)


@pytest.mark.parametrize("route", NEEDED, ids=" ".join)
def test_a_route_needs_its_scope_and_no_other(shared_api, keys, route):
    needed = frozenset({Scope(NEEDED[route])})

    refused = answer_to(shared_api, route, keys[frozenset(Scope) - needed])
    served = answer_to(shared_api, route, keys[needed])

    assert refused.status_code == 403
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "missing_scope")
    method, path = route
    assert (
        f"'{NEEDED[route]}' that {method} {re.sub(r'{[a-z_]+}', 'unknown', path)} needs" in error["message"]
    )
    assert served.status_code not in (401, 403)


def test_a_key_that_is_unknown_is_refused_before_its_scopes_are_asked_for(shared_api):
    assert answer_to(shared_api, ("GET", "/v1/tenants"), "sk-unknown").status_code == 401
