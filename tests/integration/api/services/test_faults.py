"""The parts under the API go away: some requests are refused, others go on, and every answer is right."""

import json
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from threading import Event

import httpx
import openai
import pytest

from api.app import create_app
from api.page.requests import COOKIE
from api.services.services import AppSettings
from nightshift.jobs import JobState, OnlineClaim, StopReason
from nightshift.objectstore import DirectoryStore
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings, SubmissionSettings
from nightshift.store import Store
from tests.integration.api.asking import CHAT, bearer, chat, online
from tests.integration.api.conftest import TIMEOUT_S, batch_lines, plain_http
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, prompt_of, text_answer
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

CLOSED_PORT = "postgresql+psycopg://nobody@127.0.0.1:1/nightshift"


ask = partial(chat, "one two three")


def deltas_of(text: str) -> list[str]:
    """The pieces of text in a streamed answer, which must end properly."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", text
    chunks = [json.loads(line) for line in lines[:-1]]
    return [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]]


def test_without_a_database_everything_is_unavailable_and_says_when_to_retry(data, valkey, make_key):
    key = make_key()  # well-formed, so that the database is asked for it
    gone = data.model_copy(update={"database_url": CLOSED_PORT})
    settings = AppSettings(gone, valkey.settings, LocationSettings(), ApiSettings())
    with serving(create_app(settings)) as url, httpx.Client(base_url=url, trust_env=False) as http:
        answer = http.get("/v1/batches", headers=bearer(key))
        page, sign_in = http.get("/ui/jobs"), http.post("/ui/sign_in", data={"key": key})
        shown = http.get("/ui/jobs?state=failed", headers={"cookie": f"{COOKIE}=some"})
        ready, metrics, alive = http.get("/readyz"), http.get("/metrics"), http.get("/healthz")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "database_unavailable"
    assert answer.json()["error"]["message"] == "The database cannot be reached."
    assert (page.status_code, sign_in.status_code) == (200, 503), "without a cookie the form is shown"
    assert "The database cannot be reached." in sign_in.text
    assert "127.0.0.1:1" not in sign_in.text + answer.text, "where it is, is for the log alone"
    assert shown.status_code == 503
    assert 'href="/ui/jobs?state=failed">Try again<' in shown.text
    assert "Go to the jobs" not in shown.text, "nothing can be read"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-request-id"].startswith("req_")
    assert ready.status_code == 503
    assert ready.json()["parts"]["database"] == "unavailable"
    assert ready.json()["reasons"][0] == "database: the database gives no answer; the server's log has more"
    assert "nightshift_database_up 0.0" in metrics.text
    assert alive.status_code == 200


@pytest.fixture
def gives_up_early(data: DataSettings, valkey: ValkeyServer) -> AppSettings:
    """Gives a locked database up almost at once."""
    return AppSettings(
        data.model_copy(update={"database_busy_timeout_s": 0.05}),
        valkey.settings,
        LocationSettings(),
        submission=SubmissionSettings(models=(CHAT_MODEL,)),
    )


def test_while_the_database_is_locked_nothing_is_accepted_by_halves(gives_up_early, make_key, store):
    with serving(create_app(gives_up_early)) as url, plain_http(url, make_key()) as http:
        assert http.get("/v1/models").status_code == 200
        with store.transaction():
            answer = http.post("/v1/jobs", json=online())
        accepted = http.post("/v1/jobs", json=online())

    assert answer.status_code == 503
    assert accepted.status_code == 202
    with store.snapshot() as tx:
        assert tx.holdings.total("default").online_requests == 1


class TestWithoutRedis:
    @pytest.fixture
    def settings(self, data: DataSettings, own_valkey: ValkeyServer) -> AppSettings:
        return AppSettings(data, own_valkey.settings, LocationSettings(), ApiSettings())

    @pytest.fixture
    def worker(self, store: Store, own_valkey: ValkeyServer) -> Iterator[FakeWorker]:
        with FakeWorker(store, own_valkey.settings).at_work() as worker:
            yield worker

    def test_requests_are_accepted_and_answered(self, http, worker, own_valkey, store):
        own_valkey.kill()

        whole = http.post(CHAT, json=ask())
        streamed = http.post(CHAT, json=ask(stream=True))
        ready = http.get("/readyz")

        assert whole.json()["choices"][0]["message"]["content"] == "one two three"
        assert "".join(deltas_of(streamed.text)) == "one two three"
        assert ready.status_code == 200
        assert ready.json()["status"] == "degraded"
        with store.snapshot() as tx:
            assert tx.outbox.length() == 2  # for the scheduler to ring later

    def test_a_full_one_is_unavailable_though_it_answers_and_the_log_has_its_words(
        self, http, own_valkey, caplog
    ):
        own_valkey.client.config_set("maxmemory", 1)

        ready = http.get("/readyz")

        assert ready.json()["parts"]["queue"] == "unavailable"
        causes = [getattr(record, "cause", None) for record in caplog.records]
        assert "command not allowed when used memory > 'maxmemory'." in causes

    @pytest.mark.parametrize("is_streamed", [False, True])
    @pytest.mark.parametrize(
        "fields",
        [
            {"delta": "not json"},
            {"delta": "5"},
            {"other": "x"},
            {"delta": '{"index": 7, "text": "x"}'},
            {"delta": '{"index": "x", "text": "x"}'},
            {"delta": '{"index": -1, "text": "x"}'},
            {"delta": '{"index": 0, "text": null, "offset": []}'},
        ],
        ids=str,
    )
    def test_foreign_entries_in_a_stream_cost_no_answer(
        self, http, worker, own_valkey, store, fields, is_streamed
    ):
        def meddled_with(worker: FakeWorker, claim: OnlineClaim) -> None:
            worker.stream(claim, "one", 0)
            own_valkey.client.xadd(f"ns:stream:{claim.lease.shard_id}", fields)
            worker.stream(claim, " two", 3)
            worker.record(claim, text_answer(claim, prompt_of(claim)))

        worker.behave = meddled_with
        answer = http.post(CHAT, json=ask(stream=is_streamed))

        assert answer.status_code == 200
        if is_streamed:
            assert "".join(deltas_of(answer.text)) == "one two three"
        with store.snapshot() as tx:
            assert [job.state for job in tx.jobs.list("default", limit=2)] == [JobState.SUCCEEDED]

    def test_an_answer_is_whole_when_redis_dies_in_the_middle(self, http, worker, own_valkey):
        first_delta_seen = Event()

        def lose_redis(worker: FakeWorker, claim: OnlineClaim) -> None:
            worker.stream(claim, "one", 0)
            assert first_delta_seen.wait(TIMEOUT_S)
            own_valkey.kill()
            worker.stream(claim, " two", 3)
            worker.record(claim, text_answer(claim, prompt_of(claim)))

        worker.behave = lose_redis
        pieces: list[str] = []
        with http.stream("POST", CHAT, json=ask(stream=True)) as answer:
            for line in answer.iter_lines():
                if '"content":"one"' in line:
                    first_delta_seen.set()
                pieces.append(line)

        assert "".join(deltas_of("\n".join(pieces))) == "one two three"


@pytest.mark.parametrize(
    ("pieces", "deltas"),
    [
        pytest.param([(0, "one"), (7, " three")], ["one", " two three"], id="one is lost"),
        pytest.param(
            [(0, "one"), (3, " tw"), (0, "one two"), (7, " three")],
            ["one", " tw", "o", " three"],
            id="begun again by another worker",
        ),
    ],
)
def test_a_streamed_answer_has_no_hole_and_nothing_twice(http, worker, pieces, deltas):
    def stream(worker: FakeWorker, claim: OnlineClaim) -> None:
        for start, text in pieces:
            worker.stream(claim, text, start)
        worker.record(claim, text_answer(claim, "one two three"))

    worker.behave = stream

    assert deltas_of(http.post(CHAT, json=ask(stream=True)).text) == ["", *deltas, ""]


def test_an_answer_that_comes_out_differently_the_second_time_is_an_error(client, worker):
    def think_again(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one", 0)
        worker.record(claim, text_answer(claim, "two"))

    worker.behave = think_again

    with pytest.raises(openai.APIError) as interrupted:
        list(client.chat.completions.create(stream=True, **ask()))
    assert interrupted.value.code == "stream_interrupted"


def test_a_failure_in_the_middle_of_a_stream_reaches_the_client(client, worker):
    def fail(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one", 0)
        worker.refuse(claim, 500, "model_error")

    worker.behave = fail
    seen: list[str] = []

    def read() -> None:
        for chunk in client.chat.completions.create(stream=True, **ask()):
            seen.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError) as failed:
        read()

    assert seen == ["", "one"]
    assert failed.value.code == "model_error"


def test_a_stream_that_fails_before_its_first_word_has_a_proper_status(client, worker):
    worker.behave = lambda worker, claim: worker.refuse(claim, 400, "context_length_exceeded")

    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(stream=stream, **ask())
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_the_slot(http, worker, store, stream):
    reasons: list[StopReason] = []
    began, told = Event(), Event()

    def talk(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one", 0)
        began.set()
        reasons.append(worker.stream_until_told_to_stop(claim))
        told.set()

    worker.behave = talk
    if stream:
        with http.stream("POST", CHAT, json=ask(stream=True)) as answer:
            next(line for line in answer.iter_lines() if '"one"' in line)
    else:
        connection = HTTPConnection(http.base_url.netloc.decode())
        headers = {"authorization": http.headers["authorization"], "content-type": "application/json"}
        connection.request("POST", CHAT, json.dumps(ask()), headers)
        assert began.wait(TIMEOUT_S)
        connection.close()

    assert told.wait(TIMEOUT_S)
    assert reasons == [StopReason.CANCELLED]
    with store.snapshot() as tx:
        assert tx.holdings.total("default").online_requests == 0


def test_a_file_whose_bytes_are_gone_is_not_found(client, http, data):
    file = client.files.create(file=batch_lines(1), purpose="batch")
    for path in (data.data_dir / "objects").rglob("file-*"):
        path.unlink()

    assert http.get(f"/v1/files/{file.id}/content").status_code == 404


@pytest.mark.parametrize("range", [None, "bytes=0-3"])
def test_a_file_that_is_deleted_as_it_is_opened_is_not_found(client, http, monkeypatch, range):
    file = client.files.create(file=batch_lines(1), purpose="batch")
    stream = DirectoryStore.stream

    def deleted_first(self: DirectoryStore, key: str, *arguments: int) -> Iterator[bytes]:
        self.delete(key)
        return stream(self, key, *arguments)

    monkeypatch.setattr(DirectoryStore, "stream", deleted_first)

    assert (
        http.get(f"/v1/files/{file.id}/content", headers={"range": range} if range else {}).status_code == 404
    )
