"""Query parameters, plain routes, and lists of at most 1 MB."""

import json
from itertools import count
from typing import Annotated

import pytest
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.app import create_app
from api.dependencies import _query_parameters, list_json, plain_route
from api.jobs import routes as jobs
from api.jobs.routes import router
from api.openai import inference
from api.services.services import AppSettings
from nightshift.jobs import JsonObject


async def resolved(limit: Annotated[int, Query(le=9)] = 5) -> Response:
    return JSONResponse(["resolved", limit])


async def plain(request: Request) -> Response:
    return JSONResponse(["plain", request.method])


def test_every_route_takes_the_parameters_that_its_document_names():
    app = create_app(AppSettings())
    paths = app.openapi()["paths"]

    taken, documented = {}, {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            [method] = route.methods
            parameters = paths[route.path_format][method.lower()].get("parameters", ())
            place = f"{method} {route.path_format}"
            taken[place] = set(_query_parameters(route.dependant))
            documented[place] = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}

    assert taken == documented
    assert any(taken.values())


def test_only_a_parameter_of_several_values_may_be_repeated():
    [jobs] = (route for route in router.routes if isinstance(route, APIRoute) and route.name == "list_jobs")

    known = _query_parameters(jobs.dependant)

    assert [name for name, may_be_repeated in known.items() if may_be_repeated] == ["status"]


@pytest.mark.parametrize(
    ("url", "status", "answer"),
    [("/", 200, ["plain", "GET"]), ("/?limit=7", 200, ["resolved", 7]), ("/?limit=12", 422, None)],
)
def test_a_request_without_a_query_is_answered_plainly(url, status, answer):
    app = FastAPI()
    app.router.add_api_route("/", resolved, route_class_override=plain_route(plain))

    answered = TestClient(app).get(url)

    assert answered.status_code == status
    assert answer is None or answered.json() == answer
    assert app.openapi()["paths"]["/"]["get"]["parameters"][0]["name"] == "limit"


def test_routes_that_submit_are_plain():
    routes = [*inference.router.routes, *jobs.router.routes]
    submitting = [route for route in routes if isinstance(route, APIRoute) and "POST" in route.methods]
    assert {type(route).__name__ for route in submitting if "cancel" not in route.path} == {"PlainRoute"}


def pages_of(elements: list[JsonObject], limit: int) -> list[JsonObject]:
    """The listings that a client gets that goes on while there is more."""
    pages: list[JsonObject] = []
    begin = 0
    for _ in count():
        pages.append(list_json(elements[begin : begin + limit + 1], limit))
        begin += len(pages[-1]["data"])
        if not pages[-1]["has_more"]:
            return pages
    raise AssertionError


def test_pages_of_large_elements_are_shorter_and_have_all_of_them():
    elements = [{"id": str(number), "text": "\u00e9" * 100_000} for number in range(20)]
    pages = pages_of(elements, limit=10)

    assert [element for page in pages for element in page["data"]] == elements
    assert max(len(json.dumps(page, ensure_ascii=False).encode()) for page in pages) <= 1_000_000
    assert [len(page["data"]) for page in pages] == [4] * 5
    assert pages[0]["last_id"] == "3"


def test_an_element_larger_than_a_page_is_a_page():
    elements = [{"id": str(number), "text": "x" * 2_000_000} for number in range(2)]
    assert [len(page["data"]) for page in pages_of(elements, limit=10)] == [1, 1]


def test_pages_of_small_elements_are_as_long_as_asked():
    elements = [{"id": str(number)} for number in range(7)]
    assert [len(page["data"]) for page in pages_of(elements, limit=3)] == [3, 3, 1]
