"""A client that goes away during a stream is no error of the service's."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from api.metrics.http import HttpMetrics
from api.middleware.boundary import Boundary
from api.responses.errors import install_error_handlers
from api.responses.streams import event, event_source

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}


def streaming(end: type[Exception]) -> FastAPI:
    """Its stream ends as one does whose client has disconnected, or reads nothing for a minute."""

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        yield event("one")
        raise end

    async def stream() -> Response:
        return event_source(events())

    app = FastAPI()
    app.add_api_route("/", stream, response_model=None)
    app.add_middleware(Boundary, metrics=HttpMetrics())
    install_error_handlers(app)
    return app


@pytest.mark.parametrize("end", [ClientDisconnect, SendTimeoutError])
def test_a_stream_without_a_client_is_logged_without_an_error(
    end: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    with caplog.at_level(logging.INFO):
        asyncio.run(streaming(end)(SCOPE, receive, send))

    assert [message["body"] for message in sent[1:2]] == [b"data: one\n\n"]
    assert {record.levelname for record in caplog.records if record.name.startswith("api")} == {"INFO"}
    assert not [record for record in caplog.records if record.exc_info]
