"""A plain route answers requests without a query itself, and FastAPI resolves those with one."""

from typing import Annotated

import pytest
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.jobs import routes as jobs
from api.openai import inference
from api.plain_routes import plain_route


async def resolved(limit: Annotated[int, Query(le=9)] = 5) -> Response:
    return JSONResponse(["resolved", limit])


async def plain(request: Request) -> Response:
    return JSONResponse(["plain", request.method])


@pytest.mark.parametrize(
    ("url", "status", "answer"),
    [("/", 200, ["plain", "GET"]), ("/?limit=7", 200, ["resolved", 7]), ("/?limit=12", 422, None)],
)
def test_a_request_without_a_query_is_answered_plainly(url: str, status: int, answer: object) -> None:
    app = FastAPI()
    app.router.add_api_route("/", resolved, route_class_override=plain_route(plain))

    answered = TestClient(app).get(url)

    assert answered.status_code == status
    assert answer is None or answered.json() == answer
    assert app.openapi()["paths"]["/"]["get"]["parameters"][0]["name"] == "limit"


def test_routes_that_submit_are_plain() -> None:
    routes = [*inference.router.routes, *jobs.router.routes]
    submitting = [route for route in routes if isinstance(route, APIRoute) and "POST" in route.methods]
    assert {type(route).__name__ for route in submitting if "cancel" not in route.path} == {"PlainRoute"}
