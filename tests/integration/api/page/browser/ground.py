"""Jobs as they lie in the database, with any text in any field."""

import json
import uuid
from dataclasses import replace
from datetime import timedelta

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Counts, InputError, Job, JobSpec, JobState
from nightshift.jobs.leases import Lease
from nightshift.lifecycle import recovery, transitions
from nightshift.lifecycle.controls import delete_job
from nightshift.objectstore import ObjectStore
from nightshift.store import Store, Transaction
from tests.helpers.fakes import a_new_job, a_row_result, a_segment, a_shard, a_worker
from tests.integration.api.asking import end_job, store_segment

MODEL = "org/parrot"
TTL_S = 3600.0


def running(store: Store, tenant_id: str, *, model: str = MODEL, done: int = 0, **spec: object) -> Job:
    """A bulk job that a worker has begun, of 100 rows."""
    with store.transaction() as tx:
        now = tx.now()
        own = {"output": f"file:///out/{uuid.uuid4()}/"} | spec
        new = a_new_job(tenant_id=tenant_id, model=model, spec=replace(SPEC, **own))  # type: ignore[arg-type]
        job = transitions.submit_bulk(tx, new, now).job
        transitions.plan(tx, job, model, [a_shard(0)], now, rows_total=100)
        claim = transitions.claim_bulk(tx, f"worker_{job.id[-6:]}", [model], now, TTL_S)
        assert claim is not None
        assert claim.job.id == job.id
    if done:
        progress(store, job, rows=done)
    return fetch(store, job)


SPEC = JobSpec(
    endpoint="/v1/chat/completions",
    completion_window_s=86_400,
    input="file:///in.jsonl",
)


def fetch(store: Store, job: Job) -> Job:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id)


def progress(store: Store, job: Job, *, rows: int, failed: int = 0, seq: int = 0) -> None:
    """A checkpoint of its first shard."""
    with store.transaction() as tx:
        lease = _lease(tx, job)
        segment = a_segment(lease, seq, rows=rows, failed=failed)
        assert transitions.commit_segment(tx, lease, segment, tx.now(), rows_total=None)


def failed_rows(store: Store, objects: ObjectStore, job: Job, custom_ids: list[str], message: str) -> None:
    """A checkpoint whose rows failed, in the object store as well. `{row}` in a message: the row's number."""
    rows = [
        a_row_result(place, custom_id, 400, body_text=_error(message.replace("{row}", str(place + 1))))
        for place, custom_id in enumerate(custom_ids)
    ]
    with store.transaction() as tx:
        store_segment(tx, objects, _lease(tx, job), rows, seq=100)


def interrupt(store: Store, job: Job, worker_id: str) -> None:
    """Its worker is killed, and another one goes on."""
    with store.transaction() as tx:
        recovery.release_worker(tx, _lease(tx, job).worker_id, 20, tx.now(), ExitCause.KILLED)
        assert transitions.claim_bulk(tx, worker_id, [job.model or ""], tx.now(), TTL_S) is not None


def end(store: Store, job: Job, state: JobState, errors: tuple[InputError, ...] = ()) -> None:
    end_job(store, job.id, state, counts=Counts(100, fetch(store, job).counts.succeeded, 0), errors=errors)


def delete(store: Store, job: Job) -> None:
    with store.transaction() as tx:
        assert delete_job(tx, job, tx.now())


def _lease(tx: Transaction, job: Job) -> Lease:
    (held,) = tx.shards.leased_of(job.tenant_id, job.id, 1)
    shard = held.shard
    return Lease(shard.id, job.id, job.tenant_id, shard.term, held.worker_id, held.lease_until)


def _error(message: str) -> str:
    return json.dumps({"error": {"code": "bad_row", "message": message}})


def worker(store: Store, worker_id: str, host: str, models: tuple[str, ...] = (MODEL,)) -> None:
    """One that has just been heard of, and will have been for an hour."""
    with store.transaction() as tx:
        times = {"started_at": tx.now(), "heartbeat_at": tx.now() + timedelta(hours=1)}
        tx.workers.register(a_worker(id=worker_id, host=host, models=models, **times))
