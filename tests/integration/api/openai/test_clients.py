"""The official client when things go wrong: the outcome of what it does by itself."""

import json
from threading import Event

import openai
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app import create_app
from api.openai import streaming
from tests.integration.api.asking import CHAT, batch_over, chat
from tests.integration.api.conftest import TIMEOUT_S, batch_lines
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, OnlineClaim
from tests.integration.api.serving import serving


class LosingTheAnswer:
    """The first batch is created, and its creator is told 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.lost = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def lose(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.lost += 1
                message = message | {"status": 503}
            await send(message)

        loses = scope["type"] == "http" and scope["path"] == "/v1/batches" and self.lost == 0
        await self._app(scope, receive, lose if loses else send)


def test_a_create_that_is_retried_after_a_503_makes_one_batch(settings, make_key):
    app = LosingTheAnswer(create_app(settings))
    with serving(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=make_key()) as client:
        file = client.files.create(file=batch_lines(1), purpose="batch")
        batch = client.batches.create(**batch_over(file.id))
        assert app.lost == 1
        listed = [batch.id for batch in client.batches.list()]

    assert listed == [batch.id]


@pytest.fixture
def has_opened(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> Event:
    """The worker refuses a request once this is set, when its stream has begun."""
    monkeypatch.setattr(streaming, "STREAM_START_S", 0.0)
    has_opened = Event()

    def fail_late(worker: FakeWorker, claim: OnlineClaim) -> None:
        assert has_opened.wait(TIMEOUT_S)
        worker.refuse(claim, 400, "context_length_exceeded")

    worker.behave = fail_late
    return has_opened


def test_a_stream_opens_before_its_first_word_when_that_takes_long(client, has_opened):
    stream = client.chat.completions.create(**chat(), stream=True)

    assert next(stream).choices[0].delta.role == "assistant"
    has_opened.set()
    with pytest.raises(openai.APIError) as failed:
        next(stream)
    assert failed.value.code == "context_length_exceeded"


def test_a_completions_stream_that_waits_for_its_first_word_opens_with_a_comment(http, has_opened):
    body = {"model": CHAT_MODEL, "prompt": "x", "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith(":")
        has_opened.set()
        assert "context_length_exceeded" in next(lines)


def test_a_streamed_answer_is_server_sent_events_to_the_byte(http, worker):
    answer = http.post(CHAT, json=chat(stream=True))

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"\r" not in answer.content
    *chunks, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert all(chunk.startswith("data: {") for chunk in chunks)
    parsed = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    assert {chunk["object"] for chunk in parsed} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in parsed}) == 1
    assert parsed[-1]["choices"][0]["delta"] == {}
