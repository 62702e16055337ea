"""GET /v1/workers: live workers, their models and figures. Where they run is for administrators."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from api.access.authentication import Caller
from api.bodies.figures import WorkerFiguresObject
from api.bodies.objects import MachineNoticeObject, WorkerPage
from api.dependencies import LIST_LIMIT_MAX, CallerDep, ServicesDep, list_json
from api.operation.readiness import WORKER_SILENCE_MAX
from api.responses.times import seconds
from nightshift.errors import NotFound
from nightshift.fleet.workers import Worker
from nightshift.jobs import JsonObject
from nightshift.tenants.keys import Scope

router = APIRouter(tags=["Operation"])


@router.get("/v1/workers", summary="List the workers heard of lately", response_model=WorkerPage)
def list_workers(
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = LIST_LIMIT_MAX,
    after: str | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        workers = tx.workers.list(heartbeat_since=tx.now() - WORKER_SILENCE_MAX)
    begin = 0 if after is None else _place(workers, after) + 1
    return JSONResponse(list_json([_worker_json(worker, caller) for worker in workers[begin:]], limit))


def _place(workers: Sequence[Worker], worker_id: str) -> int:
    for place, worker in enumerate(workers):
        if worker.id == worker_id:
            return place
    raise NotFound(f"No such Worker object: {worker_id}", param="after")


def _worker_json(worker: Worker, caller: Caller) -> JsonObject:
    figures, notice = worker.figures, worker.notice
    where = {"host": worker.host, "pid": worker.pid} if Scope.ADMIN in caller.scopes else {}
    return where | {
        "id": worker.id,
        "object": "worker",
        "status": worker.state,
        "models": list(worker.models),
        "warm_models": list(worker.warm),
        "capacity": worker.capacity,
        "drain_requested_at": seconds(worker.drain_requested_at),
        "notice": None if notice is None else MachineNoticeObject.of(notice).model_dump(),
        "started_at": seconds(worker.started_at),
        "heartbeat_at": seconds(worker.heartbeat_at),
        "figures": None if figures is None else WorkerFiguresObject.of(figures).model_dump(),
    }
