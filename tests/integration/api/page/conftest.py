"""A browser without a browser: a client that keeps cookies and reads forms, on an API for all tests."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from nightshift.process.settings import DataSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.integration.api.conftest import TIMEOUT_S, SharedApi, insert_key

HTML = {"accept": "text/html,application/xhtml+xml"}

KeyMaker = Callable[..., str]
SignedInMaker = Callable[..., httpx.Client]


@pytest.fixture(scope="session")
def page_store(shared_api: SharedApi) -> Iterator[Store]:
    """The shared API's database."""
    data = DataSettings(data_dir=shared_api.allowed.parent / "data")
    store = Store(Database(data.resolved_database_url))
    yield store
    store.close()


@pytest.fixture
def page_key(page_store: Store) -> KeyMaker:
    """Makes keys, of any tenant and scopes."""

    def make(tenant_id: str = "default", **fields: object) -> str:
        return insert_key(page_store, tenant_id, **fields)

    return make


def browser(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=HTML, timeout=TIMEOUT_S, trust_env=False)


@pytest.fixture
def visitor(shared_api: SharedApi) -> Iterator[httpx.Client]:
    """One who is not signed in."""
    with browser(shared_api.url) as client:
        yield client


def sign_in(client: httpx.Client, key: str, **fields: str) -> httpx.Response:
    return client.post("/ui/sign_in", data={"key": key, **fields})


@pytest.fixture
def signed_in_with(shared_api: SharedApi, page_key: KeyMaker) -> Iterator[SignedInMaker]:
    """Makes clients that are signed in, with a key of any tenant and scopes."""
    clients: list[httpx.Client] = []

    def make(tenant_id: str = "default", **fields: object) -> httpx.Client:
        clients.append(browser(shared_api.url))
        assert sign_in(clients[-1], page_key(tenant_id, **fields)).status_code == 303
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def signed_in(signed_in_with: SignedInMaker) -> httpx.Client:
    return signed_in_with()


def csrf_of(client: httpx.Client) -> str:
    match = re.search(r'name="csrf" value="([0-9a-f]+)"', client.get("/").text)
    assert match is not None
    return match[1]
