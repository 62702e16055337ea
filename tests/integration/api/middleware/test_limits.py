"""Requests that are too large or too many are refused with a clear error, and nothing is half-accepted."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import httpx
import openai
import pytest

from api.app import create_app
from api.middleware.turns import SMALL_BYTES, BodyMemory
from api.services.services import AppSettings
from nightshift.errors import TooManyRequests
from nightshift.fleet.models import Model, ModelKind
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings, SubmissionSettings
from tests.helpers.fakes import planned, submit_online
from tests.helpers.waiting import wait_for
from tests.integration.api.asking import CHAT, batch_over, bearer, chat, online
from tests.integration.api.conftest import batch_lines, plain_http
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer


@pytest.fixture
def settings(data: DataSettings, valkey: ValkeyServer) -> AppSettings:
    api = ApiSettings(body_bytes_max=20_000, file_bytes_max=100_000, online_wait_s=1.0)
    submission = SubmissionSettings(
        models=(f"/models/{CHAT_MODEL}", CHAT_MODEL),
        online_queue_max=1,
        online_queue_total_max=2,
        bulk_jobs_max=2,
        bulk_rows_max=50,
        bulk_rows_total_max=500,
    )
    return AppSettings(data, valkey.settings, LocationSettings(), api, submission)


@pytest.fixture
def batch(client: openai.OpenAI) -> dict[str, object]:
    """A batch of one row that would be accepted."""
    return batch_over(client.files.create(file=batch_lines(1), purpose="batch").id)


def pieces(count: int, size_bytes: int = 1000) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * size_bytes


def too_large(answer: httpx.Response) -> bool:
    return answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


def test_a_body_above_the_limit_is_refused_with_and_without_a_length(http):
    with_length = http.post("/v1/jobs", content=b" " * 20_001)
    without_length = http.post("/v1/jobs", content=pieces(21))
    far_above = http.post("/v1/jobs", content=pieces(39))
    at_the_limit = http.post("/v1/jobs", content=pieces(20))

    assert too_large(with_length)
    assert too_large(without_length)
    assert too_large(far_above)
    assert at_the_limit.status_code == 400  # read, and found to be blank


def test_one_tenants_unfinished_large_bodies_leave_memory_to_the_others():
    memory = BodyMemory(bytes_max=1_000_000)
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(memory.reserved("greedy", 100_000))
        with pytest.raises(TooManyRequests):
            held.enter_context(memory.reserved("greedy", 100_000))
        held.enter_context(memory.reserved("greedy", SMALL_BYTES))
        held.enter_context(memory.reserved("modest", 200_000))
    with memory.reserved("greedy", 1_000_000):
        pass  # there is room for all of it again


def test_a_body_too_many_is_refused_until_another_is_answered(data, valkey, make_key):
    """Memory for two; one of them never arrives whole."""
    api = ApiSettings(body_bytes_max=100_000, bodies_bytes_max=1)
    body = b" " * 90_000
    keys = [make_key("greedy"), make_key("modest")]

    def status(base_url: str, key: str) -> int:
        url = f"{base_url}/v1/jobs"
        return httpx.post(url, content=body, headers=bearer(key), trust_env=False).status_code

    with serving(create_app(AppSettings(data, valkey.settings, LocationSettings(), api))) as base_url:
        url = httpx.URL(base_url)
        with socket.create_connection((url.host, url.port)) as slow:
            head = f"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {keys[0]}\r\n"
            slow.sendall(f"{head}content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n".encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 100")  # its room is taken
            slow.sendall(body[1:])
            assert status(base_url, keys[0]) == 429
            assert status(base_url, keys[1]) == 400  # read, and found to be blank
        wait_for("there is room again", lambda: status(base_url, keys[0]) == 400)


def test_a_file_above_the_limit_is_refused_and_one_at_the_limit_is_not(client):
    line = batch_lines(1)
    fits = line + b"\n" * (100_000 - len(line))

    assert client.files.create(file=fits, purpose="batch").bytes == 100_000
    for too_much in (fits + b"\n", fits + b"\n" * 100_000):  # by a byte; beyond what is even read
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=too_much, purpose="batch")
        assert refused.value.status_code == 413
        assert refused.value.code == "request_too_large"
    assert len(list(client.files.list())) == 1


def test_more_bulk_jobs_than_allowed_are_told_when_to_retry(http, store, batch):
    answers = [http.post("/v1/batches", json=batch) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) > 0
    assert answers[2].json()["error"]["type"] == "rate_limit_error"
    with store.snapshot() as tx:
        assert tx.holdings.total("default").bulk_jobs == 2


@pytest.mark.parametrize(
    ("waiting", "statuses", "says"),
    [
        pytest.param({}, [202, 429], "(yours)", id="ours are too many"),
        pytest.param({"other-0": 1, "other-1": 1}, [429, 429], "(of all tenants)", id="all are too many"),
        pytest.param({"other": 3}, [202, 429], "(yours)", id="another has filled the house"),
    ],
)
def test_more_online_requests_than_allowed_are_told_when_to_retry(http, store, waiting, statuses, says):
    for tenant, count in waiting.items():
        for _ in range(count):
            submit_online(store, tenant_id=tenant)

    answers = [http.post("/v1/jobs", json=online()) for _ in range(2)]

    assert [answer.status_code for answer in answers] == statuses
    assert int(answers[1].headers["retry-after"]) > 0
    assert says in answers[1].json()["error"]["message"]
    with store.snapshot() as tx:
        assert tx.holdings.total("default").online_requests == statuses.count(202)


MANY = {f"other-{number}": 50 for number in range(10)}


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        pytest.param({"default": 50}, "of yours", id="ours are too many"),
        pytest.param({"default": 45, **MANY}, "of all tenants", id="all are too many"),
        pytest.param({"other": 10_000}, None, id="others have filled the house"),
    ],
)
def test_more_rows_than_may_wait_are_told_when_to_retry(http, store, batch, waiting, says):
    for tenant, rows in waiting.items():
        planned(store, rows_total=rows, tenant_id=tenant)

    answer = http.post("/v1/batches", json=batch)

    assert answer.status_code == (200 if says is None else 429)
    if says is not None:
        assert says in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "60"  # nothing of it has begun


def test_an_answer_that_does_not_come_ends_the_wait_and_the_job(http, store):
    answer = http.post(CHAT, json=chat())

    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    assert answer.headers["x-should-retry"] == "false"
    with store.snapshot() as tx:
        assert tx.holdings.total("default").online_requests == 0


def test_announced_models_are_listed_before_a_worker_has_loaded_them(client):
    assert [model.id for model in client.models.list()] == ["parrot", CHAT_MODEL]
    assert client.models.retrieve(CHAT_MODEL).id == CHAT_MODEL


def test_an_adapter_is_listed_with_its_parent(client, store):
    with store.transaction() as tx:
        model = Model(id="parrot", kind=ModelKind.DECODER, revision="1", parent=CHAT_MODEL)
        tx.workers.register_model(model, tx.now())

    listed = {model.id: (model.root, model.parent) for model in client.models.list()}

    assert listed == {"parrot": (CHAT_MODEL, CHAT_MODEL), CHAT_MODEL: (CHAT_MODEL, None)}


@pytest.mark.parametrize(
    "limit",
    ["bulk_jobs_max", "bulk_rows_max", "bulk_rows_total_max", "online_queue_max", "online_queue_total_max"],
)
def test_a_limit_of_zero_refuses_every_job_of_its_kind(settings, bulk, make_key, tmp_path, limit):
    submission = SubmissionSettings(models=(CHAT_MODEL,)).model_copy(update={limit: 0})
    locations = LocationSettings(file_roots=(str(tmp_path / "allowed"),))
    closed = replace(settings, submission=submission, locations=locations)
    with serving(create_app(closed)) as url, plain_http(url, make_key()) as http:
        answers = [http.post("/v1/jobs", json=body) for body in (bulk, online())]

    wanted = [429, 202] if limit.startswith("bulk") else [202, 429]
    assert [answer.status_code for answer in answers] == wanted
    assert int(answers[wanted.index(429)].headers["retry-after"]) > 0
