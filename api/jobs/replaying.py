"""A row that killed its workers is submitted again, by itself: as an online job, whatever it came from.

What its job asked for goes with it, but for the webhook: that job's end has been told, and a receiver cannot
know what to make of a job it never heard of. Whoever replays is told the new job's id.
"""

from api.jobs.fingerprints import fingerprint
from api.jobs.submission import submit_online
from api.services import Services
from nightshift.errors import Conflict, LocationNotAllowed, ObjectNotFound
from nightshift.jobs import Face, Job, JobKind, JobSpec, JsonObject, NewJob, Shard
from nightshift.jobs.dead_letters import DeadRow
from nightshift.jobs.ids import new_id
from nightshift.objectstore.objects import ObjectChanged
from nightshift.objectstore.sources import Sources
from nightshift.rows.inputs import iter_rows
from nightshift.rows.requests import RowRequest, to_request


def replay(services: Services, row: DeadRow) -> None:
    """Raises Conflict when there is nothing to run or somebody was quicker; TooManyRequests; StorageError."""
    body = _body(services, row)
    with services.store.transaction() as tx:
        now = tx.now()
        new = _job_like(tx.jobs.fetch(row.job_id), row)
        submitted = submit_online(tx, services, new, body, now)
        if not tx.dead_rows.replay(row.tenant_id, row.id, submitted.job.id, now):
            raise Conflict("Somebody has decided about this dead letter meanwhile.")
    services.doorbell.ring(submitted.rings)


def _job_like(job: Job, row: DeadRow) -> NewJob:
    """What its job asked for, for one request."""
    return NewJob(
        id=new_id("job"),
        tenant_id=row.tenant_id,
        kind=JobKind.ONLINE,
        face=Face.NATIVE,
        priority=job.priority,
        model=job.model,
        spec=JobSpec(
            endpoint=job.spec.endpoint,
            completion_window_s=job.spec.completion_window_s,
            max_runtime_s=job.spec.max_runtime_s,
            retry_on_interrupt=job.spec.retry_on_interrupt,
            capacity=job.spec.capacity,
            metadata=job.spec.metadata,
        ),
        fingerprint=fingerprint("replay", {"dead_letter": row.id}),
    )


def _body(services: Services, row: DeadRow) -> JsonObject:
    with services.store.snapshot() as tx:
        job = tx.jobs.fetch(row.job_id)
        shard = tx.shards.get(row.tenant_id, row.shard_id)
        body = tx.shards.request_body(row.tenant_id, row.shard_id)
    assert shard is not None, "a dead row refers to its shard"
    return body if body is not None else _read(services, row, job, shard)


def _read(services: Services, row: DeadRow, job: Job, shard: Shard) -> JsonObject:
    """From the job's input, which must be what it was: the shard knows."""
    try:
        source = Sources(services.objects, services.locations).open(shard.uri, row.tenant_id)
        line_bytes_max = services.settings.api.line_bytes_max
        rows = iter_rows(source.store, source.key, shard, line_bytes_max=line_bytes_max)
        found = next((one for one in rows if one.index == row.row), None)
    except (ObjectNotFound, ObjectChanged, LocationNotAllowed) as error:
        raise Conflict(f"The input of this row's job cannot be read any more: {error.message}") from error
    request = None if found is None else to_request(found, job.spec, shard)
    if not isinstance(request, RowRequest):
        raise Conflict("The input of this row's job has no such request any more.")
    return request.body
