"""Liveness, readiness and metrics: for load balancers, operators, Prometheus. No key needed."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.bodies.objects import HealthObject, ReadinessObject
from api.dependencies import ServicesDep
from api.operation.readiness import check_parts
from nightshift.jobs import JsonObject

NO_TENANT: Final = ""  # a probe has its own turn
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["Operation"])


@router.get(
    "/healthz",
    summary="Whether the process answers at all",
    response_model=HealthObject,
)
async def healthz() -> Response:
    return JSONResponse({"status": "alive"})


@router.get(
    "/readyz",
    summary="Whether requests can be accepted, and what is wrong if not",
    response_model=ReadinessObject,
)
async def readyz(services: ServicesDep) -> Response:
    parts = await services.storage_threads.of(NO_TENANT).run(lambda: check_parts(services))
    is_ready = all(part.is_well for part in parts if part.is_required)
    is_whole = all(part.is_well for part in parts)
    body: JsonObject = {
        "status": "ready" if is_whole else "degraded" if is_ready else "unavailable",
        "parts": {part.name: "ok" if part.is_well else "unavailable" for part in parts},
        "reasons": [f"{part.name}: {part.problem}" for part in parts if part.problem],
    }
    return JSONResponse(body, 200 if is_ready else 503)


@router.get("/metrics", summary="Numbers in Prometheus' text format")
def metrics(request: Request) -> Response:
    state = request.app.state
    return Response(state.processes.page(state.metrics.registry), media_type=METRICS_TYPE)
