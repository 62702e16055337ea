"""One API for all tests of a module, with a worker that keeps to what a request asks for."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.services.services import AppSettings
from conformance.node import SCRIPT
from conformance.session import Options
from nightshift.endpoints.texts.generation import Choice
from nightshift.jobs import Answer, OnlineClaim, Usage
from nightshift.process.settings import (
    ApiSettings,
    DataSettings,
    LocationSettings,
    QuotaSettings,
    SubmissionSettings,
)
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.helpers.altering_proxy import Alteration
from tests.integration.api.conftest import insert_key
from tests.integration.api.fake_worker import (
    CHAT_MODEL,
    EMBEDDING_MODEL,
    FakeWorker,
    head_of,
    request_of,
    text_answer,
    text_endpoint,
)
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

NODE_MODULES = Path(__file__).parents[4] / "node" / "node_modules"
OBJECT = '{"even": true}'  # of the schema that the checks ask for
CALL = {"id": "call_1", "type": "function", "function": {"name": "record", "arguments": OBJECT}}


def one_of_each_area(defects: Mapping[str, tuple[Alteration, list[str]]]) -> Iterator[Any]:
    """The defects, of which the first that each area's checks find is in the default run."""
    areas: set[str] = set()
    for name, (_, checks) in defects.items():
        area = checks[0].partition(".")[0]
        yield pytest.param(name, marks=[pytest.mark.exhaustive] if area in areas else [])
        areas.add(area)


@dataclass
class Served:
    """A running API; each key is of another tenant, so that no test sees objects of others."""

    url: str
    store: Store
    _numbers: Iterator[int] = field(default_factory=count)

    def options(self, **fields: Any) -> Options:
        key = insert_key(self.store, f"tenant-{next(self._numbers)}")
        waits = {
            "check_time_limit_s": 120.0,
            "batch_time_limit_s": 0.1,
            "poll_interval_s": 0.05,
            "retries": 0,
        }
        waits |= {"settle_time_limit_s": 0.0}  # no scheduler is here to end a batch
        return Options(self.url, key, **waits | fields)


@pytest.fixture(scope="module")
def served(
    sqlite_template: Path, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    data = DataSettings(data_dir=tmp_path_factory.mktemp("conformance"))
    shutil.copy(sqlite_template, data.data_dir / "nightshift.db")
    submission = SubmissionSettings(webhook_allow_cidrs=("127.0.0.0/8",), webhook_ports=("1-65535",))
    quotas = QuotaSettings(quota_requests_per_minute=10_000, quota_tokens_per_minute=10_000_000)
    settings = AppSettings(
        data, valkey_server.settings, LocationSettings(), ApiSettings(), submission, quotas
    )
    with closing(Store(Database(data.resolved_database_url))) as store:
        worker = FakeWorker(store, valkey_server.settings)
        worker.behave = obey
        with serving(create_app(settings)) as url, worker.at_work():
            yield Served(f"{url}/v1", store)


@pytest.fixture
def options(served: Served) -> Options:
    return served.options(model=CHAT_MODEL, embedding_model=EMBEDDING_MODEL)


def obey(worker: FakeWorker, claim: OnlineClaim) -> None:
    """Call the tool, write an object of the schema, or repeat the prompt: as the request asks for."""
    if claim.job.spec.endpoint == "/v1/embeddings":
        worker.echo(claim)
    elif request_of(claim).callable_tools is not None:
        worker.record(claim, _calling(claim))
    elif request_of(claim).guidance is not None:
        worker.stream(claim, OBJECT, 0)
        worker.record(claim, text_answer(claim, OBJECT))
    else:
        worker.echo(claim)


def _calling(claim: OnlineClaim) -> Answer:
    usage, choice = Usage(3, 2), Choice("", "tool_calls", calls=[CALL])
    body = text_endpoint(claim).answer(request_of(claim), head_of(claim), choices=[choice], usage=usage)
    return Answer(200, body, usage)


@pytest.fixture(scope="session")
def node_client() -> str:
    """The path for NODE_PATH at which Node finds the official client; skips where it cannot."""
    if shutil.which("node") is None:
        pytest.skip("there is no node on PATH")
    environment = os.environ | {"NODE_PATH": str(NODE_MODULES)}
    said = subprocess.run(["node", str(SCRIPT)], env=environment, capture_output=True, check=False).stdout
    if b'"version"' not in said:
        pytest.skip("the Node package openai is not installed: (cd tests/node && npm ci)")
    return str(NODE_MODULES)
