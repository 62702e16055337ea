"""A direct route gives handlers what FastAPI would give them."""

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.dependencies import ServicesDep
from api.direct_routes import DirectRoute, _taker
from api.openai import inference
from api.routes import jobs


async def text_only(
    request: Request,
    services: ServicesDep,
    job_id: str,
    prefer: Annotated[str, Header()] = "none",
    x_retry_count: Annotated[str | None, Header()] = None,
) -> Response:
    return JSONResponse([request.method, services, job_id, prefer, x_retry_count])


def in_a_thread(job_id: str) -> Response:
    return JSONResponse(job_id)


async def with_a_number(job_id: str, limit: Annotated[int, Query(le=9)] = 5) -> Response:
    return JSONResponse([job_id, limit])


@pytest.fixture(params=[APIRoute, DirectRoute])
def client(request: pytest.FixtureRequest) -> TestClient:
    router = APIRouter(route_class=request.param)
    router.get("/text/{job_id}")(text_only)
    router.get("/thread/{job_id}")(in_a_thread)
    router.get("/number/{job_id}")(with_a_number)
    app = FastAPI()
    app.state.services = "services"
    app.router.routes.extend(router.routes)
    return TestClient(app)


@pytest.mark.parametrize(
    ("path", "headers", "answer"),
    [
        ("/text/a", {}, ["GET", "services", "a", "none", None]),
        ("/text/%C3%A9%20b", {"Prefer": "wait=3"}, ["GET", "services", "é b", "wait=3", None]),
        ("/text/a", {"X-Retry-Count": "2", "prefer": ""}, ["GET", "services", "a", "", "2"]),
        ("/thread/a", {}, "a"),
        ("/number/a", {}, ["a", 5]),
        ("/number/a?limit=7", {}, ["a", 7]),
    ],
)
def test_a_handler_is_given_what_it_declares(
    client: TestClient, path: str, headers: dict[str, str], answer: Any
) -> None:
    assert client.get(path, headers=headers).json() == answer


def test_a_handler_with_parameters_that_need_checking_has_them_checked(client: TestClient) -> None:
    assert client.get("/number/a?limit=12").status_code == 422


def test_routes_that_submit_are_direct() -> None:
    routes = [*inference.router.routes, *jobs.router.routes]
    submitting = [route for route in routes if isinstance(route, APIRoute) and "POST" in route.methods]
    submitting = [route for route in submitting if "cancel" not in route.path]
    assert submitting
    for route in submitting:
        assert isinstance(route, DirectRoute)
        assert _taker(route.endpoint) is not None
