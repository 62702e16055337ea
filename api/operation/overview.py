"""GET /v1/overview: what goes on now, in one answer. `nightshift top` is made of it."""

from collections import Counter
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query

from api.bodies.figures import (
    OverviewObject,
    PastFiguresObject,
    QueueGroupObject,
    ServiceFiguresObject,
    WorkersWantedObject,
    service_queue,
)
from api.dependencies import CallerDep, ServicesDep
from api.operation.readiness import WORKER_SILENCE_MAX
from nightshift.jobs.capacity.backlog import by_group
from nightshift.jobs.capacity.demand import supply
from nightshift.jobs.capacity.service_figures import summed
from nightshift.tenants.keys import Scope

HISTORY_S: Final = 900
HISTORY_MAX_S: Final = 7_200
HISTORY_POINTS_MAX: Final = 500  # one is recorded every 15 s

router = APIRouter(tags=["Operation"])


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
    return OverviewObject(
        at=int(now.timestamp()),
        workers=dict(Counter(worker.state.value for worker in workers)),
        service=ServiceFiguresObject.of(summed(now, workers, ())),
        history=[PastFiguresObject.at_its_time(each) for each in history],
        queue=[QueueGroupObject.of(group) for group in unfinished.groups],
        queue_is_whole=unfinished.is_whole,
        service_queue=None if waiting is None else service_queue(by_group(waiting)),
        workers_wanted=None
        if waiting is None
        else [
            WorkersWantedObject.from_supply(supplied) for supplied in supply(waiting, workers, recorded, now)
        ],
    )
