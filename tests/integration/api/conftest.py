"""A running API on SQLite, a directory and a real Valkey, a key to it, and a fake worker behind it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest

from api.app import create_app
from api.services import previews
from api.services.services import AppSettings
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import new_key
from tests.faults.kit.forks import run_forked
from tests.helpers.fakes import an_api_key
from tests.integration.api.asking import CHAT, bearer, bulk_under, chat
from tests.integration.api.declared import check_declared
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

TIMEOUT_S = 30.0  # of a client: an answer that hangs fails the test


@pytest.fixture
def data(sqlite_template: Path, tmp_path: Path) -> DataSettings:
    """A data directory with an empty database of the current schema."""
    settings = DataSettings(data_dir=tmp_path / "data")
    settings.data_dir.mkdir()
    shutil.copy(sqlite_template, settings.data_dir / "nightshift.db")
    return settings


@pytest.fixture
def store(data: DataSettings) -> Iterator[Store]:
    """The same database, without the API."""
    store = Store(Database(data.resolved_database_url))
    yield store
    store.close()


@pytest.fixture
def settings(data: DataSettings, valkey: ValkeyServer, tmp_path: Path) -> AppSettings:
    roots = (str(tmp_path / "allowed"),)
    return AppSettings(data, valkey.settings, LocationSettings(file_roots=roots), ApiSettings())


@pytest.fixture
def base_url(settings: AppSettings) -> Iterator[str]:
    """A running API. Override `settings` to run another one."""
    with serving(create_app(settings)) as url:
        yield url


@pytest.fixture(scope="session")
def running_fork_server() -> None:
    """It has imported everything, for which a client would not wait on a busy machine."""
    run_forked((sys.executable, "-P", "-m", "__future__"), input=b"", env={})


@pytest.fixture
def forked_previews(running_fork_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of dry runs and estimates are forked, which saves each a second of importing; in
    `tests/unit/api/services/test_previews.py` they are programs.
    """
    forked = SimpleNamespace(run=run_forked, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(previews, "subprocess", forked)


KeyMaker = Callable[..., str]


@pytest.fixture
def make_key(store: Store) -> KeyMaker:
    """Makes API keys, of any tenant."""

    def make(tenant_id: str = "default", **fields: object) -> str:
        return insert_key(store, tenant_id, **fields)

    return make


def insert_key(store: Store, tenant_id: str, **fields: object) -> str:
    key = new_key()
    with store.transaction() as tx:
        tx.keys.insert(an_api_key(key, tenant_id=tenant_id, created_at=tx.now(), **fields))
    return key


ClientMaker = Callable[..., openai.OpenAI]


@pytest.fixture
def client_of(base_url: str, make_key: KeyMaker) -> Iterator[ClientMaker]:
    """Makes official clients, of any tenant, with their own retries unless told otherwise."""
    clients: list[openai.OpenAI] = []

    def make(tenant_id: str = "default", **options: object) -> openai.OpenAI:
        key = make_key(tenant_id)
        clients.append(openai.OpenAI(base_url=f"{base_url}/v1", api_key=key, timeout=TIMEOUT_S, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(client_of: ClientMaker) -> openai.OpenAI:
    """The official client, unmodified."""
    return client_of()


@contextmanager
def plain_http(base_url: str, key: str) -> Iterator[httpx.Client]:
    """Plain HTTP with this key. Every status must be in the documentation."""
    with httpx.Client(base_url=base_url, headers=bearer(key), timeout=TIMEOUT_S, trust_env=False) as client:
        client.event_hooks = {"response": [check_declared]}
        yield client


HttpMaker = Callable[..., httpx.Client]


@pytest.fixture
def http_of(base_url: str, make_key: KeyMaker) -> Iterator[HttpMaker]:
    """Makes clients, of any tenant, with a key of any scopes."""
    with ExitStack() as clients:
        yield lambda tenant_id="default", **fields: clients.enter_context(
            plain_http(base_url, make_key(tenant_id, **fields))
        )


@pytest.fixture
def http(http_of: HttpMaker) -> httpx.Client:
    return http_of()


@pytest.fixture
def stranger(make_key: KeyMaker) -> dict[str, str]:
    """The header of a request with another tenant's key."""
    return bearer(make_key("other"))


@dataclass(frozen=True)
class SharedApi:
    """An API that runs through all tests, for those whose requests are refused."""

    url: str
    key: str
    allowed: Path  # jobs may name what is under it


@pytest.fixture(scope="session")
def shared_api(
    sqlite_template: Path, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedApi]:
    folder = tmp_path_factory.mktemp("shared")
    data = DataSettings(data_dir=folder / "data")
    data.data_dir.mkdir()
    shutil.copy(sqlite_template, data.data_dir / "nightshift.db")
    store = Store(Database(data.resolved_database_url))
    key = insert_key(store, "default")
    store.close()
    locations = LocationSettings(file_roots=(str(folder / "allowed"),))
    with serving(create_app(AppSettings(data, valkey_server.settings, locations, ApiSettings()))) as url:
        yield SharedApi(url, key, folder / "allowed")


@pytest.fixture(scope="session")
def shared_http(shared_api: SharedApi) -> Iterator[httpx.Client]:
    with plain_http(shared_api.url, shared_api.key) as client:
        yield client


@pytest.fixture(scope="session")
def shared_client(shared_api: SharedApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_api.url}/v1", api_key=shared_api.key, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def worker(store: Store, valkey: ValkeyServer) -> Iterator[FakeWorker]:
    """A fake worker at work."""
    with FakeWorker(store, valkey.settings).at_work() as worker:
        yield worker


def batch_lines(count: int, model: str = CHAT_MODEL) -> bytes:
    """A batch file of chat requests."""
    lines = [
        {"custom_id": f"row-{n}", "method": "POST", "url": CHAT, "body": chat(str(n), model=model)}
        for n in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture
def bulk(tmp_path: Path) -> dict[str, object]:
    """A bulk job that would be accepted."""
    return bulk_under(tmp_path / "allowed")
