"""GET /v1/jobs/{id}/events: what happens to a job, as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from api.dependencies import CallerDep, ServicesDep, get_job
from api.jobs.events import Place, follow_job
from api.responses.streams import event_source
from nightshift.jobs import JobKind

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])


@router.get("/{job_id}/events", summary="Follow a job; resumes after Last-Event-ID")
def follow_events(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    place = Place.parse(last_event_id)
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        place.check(tx.events.last_seq(job.id))
        shards = tx.shards.of_job(job.id, limit=1) if job.kind is JobKind.ONLINE else ()
    return event_source(follow_job(services, job, shards[0].id if shards else None, place))
