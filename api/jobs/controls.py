"""The routes that change a job under way: its priority, its metadata, and whether it runs."""

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access.authentication import Caller
from api.bodies.jobs import parse_job_update
from api.bodies.objects import DescribedJob
from api.dependencies import BodyDep, CallerDep, ServicesDep, get_job
from api.jobs.views import described_json
from api.services.services import Services
from nightshift.jobs import Job, JsonObject
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import controls
from nightshift.lifecycle.controls import JobChanges
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])

Control = Callable[[Transaction, Job], tuple[Ring, ...]]


@router.patch(
    "/{job_id}", summary="Change a job's priority or metadata before it ends", response_model=DescribedJob
)
async def change_job(job_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    asked = parse_job_update(body)
    changes = JobChanges(
        priority=None if asked.priority is None else asked.priority.at_most(caller.priority_ceiling),
        metadata=asked.metadata,
        sets_metadata="metadata" in asked.model_fields_set,
    )

    def change(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        return controls.change(tx, job, changes, tx.now())

    return JSONResponse(await run_in_threadpool(_controlled, services, caller, job_id, change))


@router.post(
    "/{job_id}/pause", summary="Let no more of a job run until it is resumed", response_model=DescribedJob
)
def pause_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def pause(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        controls.pause(tx, job, tx.now())
        return ()

    return JSONResponse(_controlled(services, caller, job_id, pause))


@router.post(
    "/{job_id}/resume",
    summary="Let a paused job go on",
    response_model=DescribedJob,
)
def resume_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def resume(tx: Transaction, job: Job) -> tuple[Ring, ...]:
        return controls.resume(tx, job, tx.now())

    return JSONResponse(_controlled(services, caller, job_id, resume))


def _controlled(services: Services, caller: Caller, job_id: str, act: Control) -> JsonObject:
    """The job as it is after the change, whose rings are sent."""

    def controlled(tx: Transaction) -> tuple[JsonObject, tuple[Ring, ...]]:
        rings = act(tx, get_job(tx, caller, job_id))
        job = get_job(tx, caller, job_id)
        return described_json(tx, job, tx.now(), services.settings.api), rings

    shown, rings = services.store.run(controlled)
    services.ring_sender.send(rings)
    return shown
