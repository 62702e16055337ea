"""The outermost middleware: an id on every answer, and an answer to unexpected errors."""

import asyncio
import logging
from types import SimpleNamespace

import httpx
from prometheus_client import generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware import boundary
from api.middleware.boundary import Boundary, HttpMetrics


def get(app: ASGIApp, path: str = "/v1/secret-path?token=hidden", accept: str = "*/*") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers={"accept": accept})

    return asyncio.run(ask())


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("the password is hunter2")


async def failing_late(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ZeroDivisionError


def test_an_unexpected_error_is_a_500_that_gives_nothing_away(caplog):
    answer = get(Boundary(failing, HttpMetrics()))

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "hunter2" not in answer.text
    assert "ZeroDivisionError" not in answer.text
    (failure,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert failure.exc_info is not None
    assert vars(failure)["request_id"] == answer.headers["x-request-id"]


def test_to_a_browser_an_unexpected_error_is_a_page(caplog):
    app = Boundary(failing, HttpMetrics())
    shown = get(app, "/ui/jobs", "text/html,application/xhtml+xml")

    assert shown.status_code == 500
    assert shown.headers["content-type"].startswith("text/html")
    assert '<p class="big">Something went wrong' in shown.text
    assert shown.headers["x-request-id"] in shown.text
    assert "hunter2" not in shown.text
    assert get(app, "/v1/jobs", "text/html").json()["error"]["code"] == "internal_error"
    assert get(app, "/ui/jobs").json()["error"]["code"] == "internal_error"


def test_an_answer_says_how_long_it_took(monkeypatch):
    times_s = iter((10.0, 10.25, 11.0))
    monkeypatch.setattr(boundary, "time", SimpleNamespace(monotonic=lambda: next(times_s)))

    answer = get(Boundary(failing, HttpMetrics()))

    assert answer.headers["openai-processing-ms"] == "250"


def test_an_answer_that_has_begun_is_cut_off_rather_than_mended():
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/"}
    asyncio.run(Boundary(failing_late, HttpMetrics())(scope, receive, send))

    assert [message.get("body") for message in sent] == [None, b"half"]
    assert sent[-1]["more_body"] is True  # so the server closes the connection, and the client notices


def test_neither_paths_nor_queries_reach_the_log_or_the_metrics(caplog):
    metrics = HttpMetrics()
    with caplog.at_level(logging.INFO):
        get(Boundary(failing, metrics))

    told = " ".join(str(vars(record)) for record in caplog.records if record.name.startswith("api"))
    shown = generate_latest(metrics.registry).decode()
    for secret in ("secret-path", "hidden"):
        assert secret not in told
        assert secret not in shown
    assert 'nightshift_http_requests_total{method="GET",route="(no route)",status="500"} 1.0' in shown
