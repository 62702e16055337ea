"""GET /v1/workers, and GET /v1/overview: the whole service in one answer, shown by `nightshift top`."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from api.access import Caller
from api.bodies.figures import (
    OverviewObject,
    PastFiguresObject,
    QueueGroupObject,
    ServiceFiguresObject,
    WorkerFiguresObject,
    WorkersWantedObject,
    service_queue,
)
from api.bodies.objects import MachineNoticeObject, WorkerPage
from api.dependencies import LIST_LIMIT_MAX, CallerDep, ServicesDep, list_json
from api.operation.health import WORKER_SILENCE_MAX
from api.responses.times import seconds
from nightshift.errors import NotFound
from nightshift.fleet.workers import Worker
from nightshift.jobs import JsonObject
from nightshift.jobs.capacity.backlog import by_group
from nightshift.jobs.capacity.demand import supply
from nightshift.jobs.capacity.service_figures import summed
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
        "notice": None if notice is None else MachineNoticeObject.shown(notice),
        "started_at": seconds(worker.started_at),
        "heartbeat_at": seconds(worker.heartbeat_at),
        "figures": None if figures is None else WorkerFiguresObject.shown(figures),
    }


HISTORY_S: Final = 900
HISTORY_MAX_S: Final = 7_200
HISTORY_POINTS_MAX: Final = 500  # one is recorded every 15 s


@router.get("/v1/overview", summary="The service's figures now and lately, and what is queued")
def overview(
    services: ServicesDep,
    caller: CallerDep,
    history_s: Annotated[int, Query(ge=0, le=HISTORY_MAX_S)] = HISTORY_S,
) -> OverviewObject:
    """Workers and figures are the whole service's; the queue is that of the key's tenant."""
    with services.store.snapshot() as tx:
        now = tx.now()
        workers = tx.workers.list(heartbeat_since=now - WORKER_SILENCE_MAX)
        history = tx.figures.since(now - timedelta(seconds=history_s), HISTORY_POINTS_MAX)
        unfinished = tx.overview.unfinished(caller.tenant_id)
        waiting = tx.figures.waiting() if Scope.ADMIN in caller.scopes else None
        recorded = tx.figures.latest()
    wanted = None
    if waiting is not None:
        supplies = supply(waiting, workers, recorded, now)
        wanted = [WorkersWantedObject.from_supply(supplied) for supplied in supplies]
    return OverviewObject(
        at=int(now.timestamp()),
        workers=dict(Counter(worker.state.value for worker in workers)),
        service=ServiceFiguresObject.model_validate(summed(now, workers, ())),
        history=[PastFiguresObject.model_validate(figures) for figures in history],
        queue=[QueueGroupObject.model_validate(group) for group in unfinished.groups],
        queue_is_whole=unfinished.is_whole,
        service_queue=None if waiting is None else service_queue(by_group(waiting)),
        workers_wanted=wanted,
    )
