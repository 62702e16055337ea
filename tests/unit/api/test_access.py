"""The table of scopes is held against the OpenAPI document: no route is without one."""

import pytest
from fastapi import FastAPI

from api.access import NEEDED
from api.app import create_app
from api.services.services import AppSettings

NEED_NO_KEY = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(AppSettings())


def test_every_route_of_the_document_names_the_scope_it_needs(app: FastAPI) -> None:
    described = {
        (method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
        if method != "head"
    }

    assert described - NEED_NO_KEY == set(NEEDED)


def test_the_document_says_which_scope_that_is(app: FastAPI) -> None:
    paths = app.openapi()["paths"]

    assert {key: paths[key[1]][key[0].lower()]["security"] for key in NEEDED} == {
        key: [{"key": [scope]}] for key, scope in NEEDED.items()
    }
