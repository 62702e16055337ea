"""Liveness, readiness and metrics, for load balancers, operators and Prometheus, without a key.

A missing optional part means degraded. The problems name no host and quote no driver: those are logged.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.bodies.objects import HealthObject, ReadinessObject
from api.dependencies import ServicesDep
from api.services.services import Services
from nightshift.errors import DatabaseUnusable, NightshiftError, SchemaBehind
from nightshift.jobs import JsonObject
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store.databases.migrate import check_schema

log = logging.getLogger(__name__)

PROBE_KEY: Final = "readyz"  # never exists
WORKER_SILENCE_MAX: Final = timedelta(seconds=30)  # six heartbeats


@dataclass(frozen=True)
class Part:
    """A part and its problem, if any."""

    name: str
    is_required: bool
    problem: str | None

    @property
    def is_well(self) -> bool:
        return self.problem is None


def check_parts(services: Services) -> Sequence[Part]:
    """Checks every part now. Blocks up to their timeouts."""
    needs_worker = services.settings.api.ready_needs_worker
    database = _problem_with_database(services)
    return (
        Part("database", True, database),
        Part("storage", True, _problem_with_storage(services)),
        Part("queue", False, _problem_with_queue(services)),
        Part("scheduler", False, database or _problem_with_scheduler(services)),
        Part("worker", needs_worker, database or _problem_with_workers(services)),
    )


def _problem_with_database(services: Services) -> str | None:
    try:
        check_schema(services.store.database)
    except SchemaBehind:
        return "the schema is not the one this version expects; run the migrations"
    except DatabaseUnusable as error:
        # A driver's words are not shown; ours name the difference.
        return error.message if error.__cause__ is None else _logged("database", error)
    except NightshiftError as error:
        return _logged("database", error)
    return None


def _problem_with_storage(services: Services) -> str | None:
    try:
        services.objects.head(PROBE_KEY)
    except NightshiftError as error:
        return _logged("storage", error)
    return None


def _problem_with_queue(services: Services) -> str | None:
    try:
        services.queue.ping()
    except NightshiftError as error:
        return _logged("queue", error)
    return None


def _problem_with_scheduler(services: Services) -> str | None:
    with services.store.snapshot() as tx:
        leader, now = tx.leadership.leader(SCHEDULER_DUTY), tx.now()
    if leader is None or leader.expires_at <= now:
        return "no scheduler leads"
    if leader.stalled is not None:
        return f"its duty '{leader.stalled}' stands still: it has not ended for NIGHTSHIFT_DUTY_STALLED_S"
    return None


def _problem_with_workers(services: Services) -> str | None:
    with services.store.snapshot() as tx:
        if tx.workers.ready_since(tx.now() - WORKER_SILENCE_MAX) == 0:
            return "no worker is ready"
    return None


def _cause(error: NightshiftError) -> str | None:
    """The driver's words, such as that Redis refuses the password: the message itself is for users."""
    return None if error.__cause__ is None else str(error.__cause__).partition("\n")[0]


def _logged(part: str, error: NightshiftError) -> str:
    log.warning(
        "part unavailable",
        extra={"action": "part_unavailable", "part": part, "error": error.message, "cause": _cause(error)},
    )
    return f"the {part} gives no answer; the server's log has more"


NO_TENANT: Final = ""  # a probe has its own turn
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["Operation"])


@router.get("/healthz", summary="Whether the process answers at all", response_model=HealthObject)
async def healthz() -> Response:
    return JSONResponse({"status": "alive", "service": "nightshift"})


@router.get(
    "/readyz",
    summary="Whether requests can be accepted, and what is wrong if not",
    response_model=ReadinessObject,
)
async def readyz(services: ServicesDep) -> Response:
    parts = await services.storage_threads.for_tenant(NO_TENANT).run(lambda: check_parts(services))
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
    return Response(state.processes.exposition(state.metrics.registry), media_type=METRICS_TYPE)
