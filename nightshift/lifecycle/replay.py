"""Submits a dead letter's row again as an online job.

The new job copies its job's spec without the webhook: its receiver has had that job's end.
"""

from nightshift.bulk.rows.requests import RowRequest, rows_of, to_request
from nightshift.errors import Conflict, LocationNotAllowed, ObjectNotFound
from nightshift.jobs import Face, Job, JobSpec, JsonObject, NewJob, Shard
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.json_text import fingerprint, json_bytes
from nightshift.lifecycle.submission import Submitter, new_job
from nightshift.lifecycle.transitions import Submitted
from nightshift.objectstore.objects import ObjectChanged
from nightshift.objectstore.sources import Sources
from nightshift.store import Store


def replay(row: DeadLetter, store: Store, submitter: Submitter, sources: Sources) -> Submitted:
    """Raises Conflict for a row that cannot be read or was decided; TooManyRequests; StorageError."""
    job, body = _request(row, store, sources, submitter.settings.line_bytes_max)
    new = submitter.check(_job_like(job, row, body), job.priority)
    with store.transaction() as tx:
        now = tx.now()
        submitted = submitter.submit_online(tx, new, body, now)
        if not tx.dead_letters.replay(row.tenant_id, row.id, submitted.job.id, now):
            raise Conflict("Somebody has decided about this dead letter meanwhile.")
    return submitted


def _job_like(job: Job, row: DeadLetter, body: JsonObject) -> NewJob:
    """A new job with the options of the row's job."""
    spec = JobSpec(
        endpoint=job.spec.endpoint,
        completion_window_s=job.spec.completion_window_s,
        max_runtime_s=job.spec.max_runtime_s,
        retry_on_interrupt=job.spec.retry_on_interrupt,
        capacity=job.spec.capacity,
        metadata=job.spec.metadata,
    )
    return new_job(
        row.tenant_id,
        Face.NATIVE,
        spec,
        fingerprint=fingerprint("replay", {"dead_letter": row.id}),
        priority=job.priority,
        model=job.model,
        body_bytes=json_bytes(body),
    )


def _request(row: DeadLetter, store: Store, sources: Sources, line_bytes_max: int) -> tuple[Job, JsonObject]:
    """The row's job, and its body: as sent online, or from its input line."""
    with store.snapshot() as tx:
        job = tx.jobs.fetch(row.job_id)
        shard = tx.shards.get(row.tenant_id, row.shard_id)
        body = tx.shards.request_body(row.tenant_id, row.shard_id)
    assert shard is not None, "a dead row refers to its shard"
    return job, body if body is not None else _read(row, job, shard, sources, line_bytes_max)


def _read(row: DeadLetter, job: Job, shard: Shard, sources: Sources, line_bytes_max: int) -> JsonObject:
    """Reads the row from the job's input, which must be as it was planned."""
    try:
        source = sources.open(shard.uri, row.tenant_id)
        rows = rows_of(source.store, source.key, shard, job.spec, line_bytes_max=line_bytes_max)
        dead_row = next((one for one in rows if one.index == row.row), None)
    except (ObjectNotFound, ObjectChanged, LocationNotAllowed) as error:
        raise Conflict(f"The input of this row's job cannot be read any more: {error.message}") from error
    request = None if dead_row is None else to_request(dead_row, job.spec, shard)
    if not isinstance(request, RowRequest):
        raise Conflict("The input of this row's job has no such request any more.")
    return request.body
