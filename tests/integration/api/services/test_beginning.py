"""Requests that submit begin in their tenants' turns, so many at a time, on every route."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI

from api.app import create_app
from api.middleware.turns import BEGUN_AT_ONCE
from api.services.services import AppSettings
from tests.helpers.waiting import wait_for
from tests.integration.api.asking import CHAT, chat, online
from tests.integration.api.serving import serving


@pytest.fixture
def app(settings: AppSettings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def base_url(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat()),
        ("/v1/jobs", online()),
        ("/v1/jobs?dry_run=true", online()),
        ("/v1/jobs", {"endpoint": CHAT, "input": "file-none", "template": chat()}),
    ],
    ids=["inference", "a job of one request", "a dry run", "a job of many"],
)
def test_a_request_waits_while_as_many_begin_as_may(app, http, worker, path, body):
    turns = app.state.services.body_turns.beginning._turns
    held = [turns.ask("another", lambda place: None) for _ in range(BEGUN_AT_ONCE)]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, path, json=body)
        try:
            wait_for("the request to wait for its turn", lambda: turns.num_waiting == 1)
            assert not answer.done()
        finally:
            for place in held:
                turns.leave(place)
        assert answer.result().status_code < 500
    assert turns.num_waiting == 0
