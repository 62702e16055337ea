"""The client against a server that is a function: what it sends, what it repeats, what it makes of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from nightshift.client import TRIES_MAX, ApiError, Client, JobEvent, ServerUnreachable, parse_events
from nightshift.errors import ConfigurationError, InvalidRequest
from nightshift.jobs import JobState

JOB = {
    "id": "job_1",
    "status": "running",
    "counts": {"total": None, "succeeded": 3, "failed": 1},
    "rows_estimated": 10,
    "usage": {"prompt_tokens": 40, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 8}},
    "errors": [{"code": "empty_file", "message": "the input is empty", "line": None, "param": None}],
}


class Server:
    """Answers what it is told to, in order, the last answer again and again; remembers what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Makes clients of such a server; they never really sleep."""
    made: list[Client] = []

    def make(server: Server, sleeps: list[float] | None = None, base_url: str = "http://server") -> Client:
        sleep = sleeps.append if sleeps is not None else lambda seconds: None
        made.append(Client(base_url, "ns_live_key", transport=httpx.MockTransport(server), sleep=sleep))
        return made[-1]

    yield make
    for client in made:
        client.close()


def ok(body: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body)


def page(*data: dict[str, Any], has_more: bool) -> httpx.Response:
    return ok({"data": data, "has_more": has_more, "last_id": data[-1]["id"] if data else None})


def refusal(status: int, retry_after: str | None = None, **error: str) -> httpx.Response:
    answer = ok({"error": {"message": "no", "type": "invalid_request_error", **error}}, status)
    if retry_after is not None:
        answer.headers["retry-after"] = retry_after
    return answer


def test_a_job_is_read_as_the_server_describes_it(connect):
    job = connect(Server(ok(JOB))).get_job("job_1")

    assert job.state is JobState.RUNNING
    assert (job.counts.total, job.counts.succeeded, job.counts.failed) == (None, 3, 1)
    assert (job.rows_done, job.rows_expected) == (4, 10)
    assert (job.usage.prompt_tokens, job.usage.completion_tokens, job.usage.cached_tokens) == (40, 20, 8)
    assert job.errors == ("the input is empty",)
    assert job.data == JOB


def test_a_known_total_is_preferred_to_an_estimate_and_a_short_answer_is_a_job_too(connect):
    counts = {"total": 12, "succeeded": 0, "failed": 0}
    assert connect(Server(ok(JOB | {"counts": counts}))).get_job("job_1").rows_expected == 12

    answer = ok({"id": "job_1", "status": "queued", "queue_position": 1}, 202)
    job = connect(Server(answer)).submit_job({"endpoint": "chat"})
    assert (job.state, job.rows_done, job.rows_expected) == (JobState.QUEUED, 0, None)


@pytest.mark.parametrize(
    ("base_url", "api_key", "variable"),
    [
        ("localhost:8000", "ns_live_key", "NIGHTSHIFT_BASE_URL"),
        ("http://localhost:8000", "ns_live_schlüssel", "NIGHTSHIFT_API_KEY"),
        ("http://localhost:8000", "ns_live_key\n", "NIGHTSHIFT_API_KEY"),
    ],
)
def test_what_no_request_can_be_made_with_is_refused_with_its_variable_named(base_url, api_key, variable):
    with pytest.raises(ConfigurationError) as refused:
        Client(base_url, api_key)
    assert refused.value.param == variable
    assert api_key not in refused.value.message


@pytest.mark.parametrize("base_url", ["http://server", "http://server/", "http://server/v1"])
def test_a_base_url_is_understood_with_and_without_v1_and_every_call_carries_the_key(connect, base_url):
    server = Server(ok(JOB))
    connect(server, base_url=base_url).get_job("job_1")
    [request] = server.requests
    assert str(request.url) == "http://server/v1/jobs/job_1"
    assert request.headers["authorization"] == "Bearer ns_live_key"


def test_a_refusal_says_what_the_server_said_and_is_not_repeated(connect):
    server = Server(refusal(400, param="output", code="location_not_allowed"))
    with pytest.raises(ApiError) as caught:
        connect(server).submit_job({})
    refused = caught.value
    assert (refused.status, refused.code, refused.param) == (400, "location_not_allowed", "output")
    assert refused.message == "no"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            httpx.Response(404, text="<html>nginx</html>"),
            "HTTP 404 from http://server/v1/jobs/job_1: <html>nginx",
        ),
        (httpx.Response(200, text="hello"), "is it a Nightshift server"),
    ],
)
def test_an_answer_that_is_not_ours_is_an_error_that_says_something(connect, answer, said):
    with pytest.raises(ApiError, match=said):
        connect(Server(answer)).get_job("job_1")


@pytest.mark.parametrize("value", [float("nan"), "\udcff"])
def test_a_value_that_json_cannot_have_is_refused_and_not_sent(connect, value):
    server = Server()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        connect(server).submit_job({"name": value})
    assert server.requests == []


def test_an_id_that_is_no_unicode_is_asked_for(connect):
    with pytest.raises(ApiError) as caught:
        connect(Server(refusal(404))).get_job("job_\udcff")
    assert caught.value.status == 404


def test_an_estimate_whose_answer_is_lost_runs_no_second_sample(connect):
    server = Server(httpx.ReadTimeout("slow"))
    with pytest.raises(ServerUnreachable):
        connect(server).estimate_job({"endpoint": "chat"})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "trouble", [refusal(503), refusal(429), refusal(502), httpx.ReadTimeout("slow"), httpx.ReadError("reset")]
)
def test_a_create_is_repeated_under_its_own_key(connect, trouble):
    server = Server(trouble, trouble, ok(JOB, 202))
    client = connect(server)
    client.submit_job({"endpoint": "chat"})
    client.submit_job({"endpoint": "chat"})

    first, *repeats, second = [request.headers["idempotency-key"] for request in server.requests]
    assert repeats == [first, first]
    assert second != first


REPLAYED = {"id": "dlq_1", "status": "replayed", "replay_job_id": "job_2"}


def test_a_replay_whose_answer_was_lost_has_succeeded_all_the_same(connect):
    server = Server(httpx.ReadError("reset"), refusal(409), ok(REPLAYED))

    assert connect(server).replay_dead_letter("dlq_1") == REPLAYED
    assert [request.method for request in server.requests] == ["POST", "POST", "GET"]


@pytest.mark.parametrize("delete", [Client.delete_job, Client.delete_schedule])
def test_a_delete_whose_answer_was_lost_has_succeeded_all_the_same(connect, delete):
    delete(connect(Server(httpx.ReadError("reset"), refusal(404))), "one")

    with pytest.raises(ApiError):  # nothing was lost: there is none
        delete(connect(Server(refusal(404))), "one")


@pytest.mark.parametrize(
    "answers",
    [
        [refusal(409)],  # nothing was lost: it was decided before
        [httpx.ReadError("reset"), refusal(409), ok(REPLAYED)],  # otherwise than asked
    ],
)
def test_a_request_that_was_decided_otherwise_stays_refused(connect, answers):
    with pytest.raises(ApiError) as refused:
        connect(Server(*answers)).discard_dead_letter("dlq_1")

    assert refused.value.status == 409


def test_an_id_cannot_lead_to_another_route(connect):
    server = Server(ok(REPLAYED))
    connect(server).discard_dead_letter("dlq_1/replay?")

    assert server.requests[0].url.raw_path == b"/v1/dead_letters/dlq_1%2Freplay%3F/discard"


def test_a_nightly_run_is_known_by_its_name_and_brings_no_key(connect):
    server = Server(ok(JOB, 202))
    connect(server).submit_job({"name": "docs", "date": "2026-11-20"})
    assert "idempotency-key" not in server.requests[0].headers
    assert json.loads(server.requests[0].content) == {"name": "docs", "date": "2026-11-20"}


def test_repeats_end_and_wait_longer_each_time(connect):
    sleeps: list[float] = []
    server = Server(refusal(503))
    with pytest.raises(ApiError):
        connect(server, sleeps).get_job("job_1")
    assert len(server.requests) == TRIES_MAX
    assert sleeps == [0.5, 1.0, 2.0, 4.0]


def test_retry_after_is_honoured(connect):
    sleeps: list[float] = []
    connect(Server(refusal(429, retry_after="3"), ok(JOB)), sleeps).get_job("job_1")
    assert sleeps == [3.0]


def test_a_server_that_is_not_there_is_said_at_once(connect):
    server = Server(httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachable, match=r"http://server.*Is the server running"):
        connect(server).get_job("job_1")
    assert len(server.requests) == 1


def test_listing_goes_on_from_page_to_page(connect):
    jobs = [JOB | {"id": f"job_{number}"} for number in (3, 2, 1)]
    server = Server(page(*jobs[:2], has_more=True), page(jobs[2], has_more=False))

    assert [job.id for job in connect(server).list_jobs(status="running")] == ["job_3", "job_2", "job_1"]

    assert "after" not in server.requests[0].url.params
    assert dict(server.requests[1].url.params) == {"status": "running", "limit": "100", "after": "job_2"}


def test_listing_asks_for_what_it_is_told_to_and_stops_at_its_limit(connect):
    server = Server(page(has_more=False))
    about = {"kind": "bulk", "model": "m", "name": "nightly"}
    since = datetime(2026, 11, 23, tzinfo=UTC)

    assert list(connect(server).list_jobs(status=("queued", "running"), created_after=since, **about)) == []

    params = server.requests[0].url.params
    assert params.get_list("status") == ["queued", "running"]
    query = about | {"created_after": "1795392000", "limit": "100"}
    assert dict(params.remove("status")) == query

    server = Server(page(JOB, JOB, has_more=True))
    assert len(list(connect(server).list_jobs(limit=2))) == 2
    assert [request.url.params["limit"] for request in server.requests] == ["2"]


def test_events_end_with_the_job_and_pings_call_back(connect):
    body = (
        ': ping\n\nid: 1-0\nevent: job.running\ndata: {"type": "job.running"}\n\n: ping\n\n'
        'id: 2-0\nevent: job.succeeded\ndata: {"type": "job.succeeded"}\n\n'
    )
    pings: list[str] = []
    client = connect(Server(httpx.Response(200, text=body)))
    events = list(client.events("job_1", on_keep_alive=lambda: pings.append("ping")))
    assert [(event.id, event.is_last) for event in events] == [("1-0", False), ("2-0", True)]
    assert pings == ["ping", "ping"]


def test_a_broken_event_stream_is_taken_up_where_it_broke(connect):
    class Breaking(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b'id: 7-0\nevent: job.progress\ndata: {"n": 7}\n\nid: 8-0\nevent: job.pro'
            raise httpx.ReadError("reset")

    rest = 'id: 8-0\nevent: job.succeeded\ndata: {"n": 8}\n\n'
    server = Server(httpx.Response(200, stream=Breaking()), httpx.Response(200, text=rest))
    events = list(connect(server).events("job_1"))

    assert [event.data["n"] for event in events] == [7, 8]
    assert "last-event-id" not in server.requests[0].headers
    assert server.requests[1].headers["last-event-id"] == "7-0"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_event_stream_is_asked_for_again_while_the_server_is_away(connect, status):
    """Behind a proxy, or while its database is away, a server that restarts answers, but not with events."""
    sleeps: list[float] = []
    end = httpx.Response(200, text="id: 8-0\nevent: job.succeeded\ndata: {}\n\n")
    away = refusal(status, retry_after="3")
    events = list(connect(Server(away, refusal(status), end), sleeps).events("job_1", after="7-0"))

    assert [event.type for event in events] == ["job.succeeded"]
    assert sleeps == [3.0, 1.0]


@pytest.mark.parametrize(
    ("trouble", "raised"), [(refusal(503), ApiError), (httpx.ConnectError("refused"), ServerUnreachable)]
)
def test_a_server_that_stays_away_is_given_up_about_two_minutes_later(connect, trouble, raised):
    sleeps: list[float] = []
    client = connect(Server(trouble), sleeps)
    for call in (lambda: list(client.events("job_1")), lambda: client.get_job("job_1", is_followed=True)):
        sleeps.clear()
        with pytest.raises(raised):
            call()
        assert 100 < sum(sleeps) < 150


def test_a_job_that_is_followed_is_looked_at_again_when_its_server_has_come_back(connect):
    server = Server(httpx.ConnectError("refused"), refusal(502), ok(JOB))

    assert connect(server).get_job("job_1", is_followed=True).id == "job_1"


def test_events_of_a_job_that_is_not_there_are_an_error(connect):
    with pytest.raises(ApiError) as caught:
        list(connect(Server(refusal(404))).events("job_1"))
    assert caught.value.status == 404


def test_results_are_streamed_and_go_on_after_a_broken_stream(connect):
    def broken() -> Iterator[bytes]:
        yield '{"id": "row_1_0"}\n{"id": "row_1_1", "text": "a\u2028b"}\n{"id'.encode()
        raise httpx.ReadError("gone")

    lines = {"content-type": "application/x-ndjson"}
    server = Server(
        httpx.Response(200, headers=lines, content=broken()),
        httpx.Response(200, headers=lines, content=b'{"id": "row_1_2"}\n'),
    )

    rows = list(connect(server).results("job_1"))

    assert rows == [{"id": "row_1_0"}, {"id": "row_1_1", "text": "a\u2028b"}, {"id": "row_1_2"}]
    assert [dict(request.url.params) for request in server.requests] == [{}, {"after": "row_1_1"}]


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        (["data: {}", ""], [JobEvent("", "message", {})]),
        (["id:5", "event:job.queued", 'data:{"a":1}', ""], [JobEvent("5", "job.queued", {"a": 1})]),
        ([": comment", "", "data: {}", ""], [JobEvent("", "message", {})]),
        (["data: {}"], []),  # cut off before the blank line
        (["id: 1", ""], []),  # nothing was said
    ],
)
def test_event_lines_are_read_as_the_standard_says(lines, events):
    assert list(parse_events(iter(lines))) == events


@pytest.mark.parametrize(
    ("type", "is_last"),
    [("job.queued", False), ("job.progress", False), ("job.finalizing", False), ("job.expired", True)],
)
def test_only_a_terminal_event_is_the_last(type, is_last):
    assert JobEvent("1", type, {}).is_last is is_last


def test_the_client_is_loaded_when_it_is_asked_for():
    code = "import sys, nightshift; assert 'httpx' not in sys.modules; print(nightshift.Client.__name__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "Client\n"


def test_a_client_without_a_server_and_a_key_takes_those_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", "http://there")
    monkeypatch.setenv("NIGHTSHIFT_DATA_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no API key"):
        Client()

    (tmp_path / "api_key").write_text("ns_own\n")
    server = Server(ok(JOB))
    with Client(transport=httpx.MockTransport(server)) as client:
        client.get_job("job_1")
    assert str(server.requests[0].url) == "http://there/v1/jobs/job_1"
    assert server.requests[0].headers["authorization"] == "Bearer ns_own"
