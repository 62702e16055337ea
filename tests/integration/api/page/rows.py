"""Rows for the lists of the page: one of each kind, of a tenant of its own, with a text in every field that a
client or an operator names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nightshift.fleet.figures import DeviceFigures, ModelFigures, WorkerFigures
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import Job, ShardState, Usage
from nightshift.jobs.ids import new_id
from nightshift.outbound.webhooks import DeliveryState
from nightshift.schedules.plans import Plan, Schedule, ScheduleProblem
from nightshift.schedules.runs import Run, RunState
from nightshift.store import Store, Transaction, tables
from nightshift.tenants.usage import usage_day
from tests.helpers.fakes import (
    a_dead_letter,
    a_delivery,
    a_schedule,
    a_schedule_version,
    a_webhook_endpoint,
    a_worker,
    an_api_key,
    an_attempt,
    planned,
    submit_online,
)


@dataclass(frozen=True)
class Rows:
    """Ids. `letter`: of an online request that can be replayed; `lease`: of the job whose shard the worker
    holds.
    """

    tenant: str
    letter: str
    delivery: str
    endpoint: str
    worker: str
    ended_worker: str
    lease: str
    key: str
    schedule: str
    schedule_name: str
    run: str

    @property
    def of_tenant(self) -> tuple[str, ...]:
        return self.letter, self.delivery, self.endpoint, self.lease, self.schedule, self.run


def add_rows(store: Store, tenant: str, text: str = "plain") -> Rows:
    """`text`: names the custom id, receiver, error, host, model, pool and key."""
    online, bulk = submit_online(store, tenant_id=tenant), planned(store, tenant_id=tenant)
    with store.transaction() as tx:
        letter = _letter(tx, online.job, text)
        delivery, endpoint = _delivery(tx, bulk, text)
        worker, ended = _workers(tx, text)
        _hold(tx, bulk.id, worker)
        key = an_api_key(tenant_id=tenant, name=text, created_at=tx.now())
        tx.keys.insert(key)
        tx.usage.add(tenant, text[:255], usage_day(tx.now()), 5, 2, Usage(100, 30, 10))
        schedule = _schedule(tx, bulk, text)
    return Rows(tenant, letter, delivery, endpoint, worker, ended, bulk.id, key.id, *schedule)


def _letter(tx: Transaction, job: Job, text: str) -> str:
    [shard] = tx.shards.of_job(job.id, limit=1)
    letter = a_dead_letter(job, shard.id, 0, custom_id=text, cause=ExitCause.OUT_OF_MEMORY, died_at=tx.now())
    tx.dead_letters.insert(letter)
    return letter.id


def _delivery(tx: Transaction, job: Job, text: str) -> tuple[str, str]:
    now = tx.now()
    endpoint = a_webhook_endpoint(
        tenant_id=job.tenant_id,
        name=text,
        url=f"https://receiver.example/{text}",
        created_at=now,
        failing_since=now,
    )
    tx.webhook_endpoints.insert(endpoint)
    delivery = a_delivery(job, endpoint_id=endpoint.id, url=endpoint.url, created_at=now, next_at=now)
    tx.deliveries.insert(delivery)
    attempt = an_attempt(
        delivery, status_code=None, error=text, response_head=f"secret {text}", started_at=now
    )
    tx.deliveries.record(delivery, attempt, DeliveryState.DEAD, now)
    return delivery.id, endpoint.id


def _workers(tx: Transaction, text: str) -> tuple[str, str]:
    now, model = tx.now(), text[:200]
    tx.workers.register_model(
        Model(id=model, kind=ModelKind.ENCODER, revision=text, context_length=512, dimensions=384), now
    )
    worker = a_worker(  # the newest: the overview shows fifty
        host=text, models=(model, "cold-one"), warm_models=(model,), pools=(text,), started_at=now
    )
    figures = WorkerFigures(
        models={model: ModelFigures(busy_fraction=0.5, generation_tokens_per_s=1200.0, running=4)},
        device=DeviceFigures(kind="cuda", name=text, memory_used_bytes=2**33, memory_bytes=2**35),
        shards=1,
        requests=2,
    )
    ended = a_worker(host=text, models=(model,), started_at=now - timedelta(hours=1), heartbeat_at=now)
    for registered in (worker, ended):
        tx.workers.register(registered)
        tx.workers.serves(registered.id, registered.models, now, registered.warm_models)
    tx.workers.record_heartbeat(worker.id, WorkerState.READY, now, figures)
    tx.workers.ended(ended.id, ExitCause.STUCK_STEP, now)
    return worker.id, ended.id


def _schedule(tx: Transaction, job: Job, text: str) -> tuple[str, str, str]:
    """A schedule with a problem, whose run of a minute ago has the job; the run before it was refused."""
    now = tx.now()
    made = add_schedule(
        tx,
        job.tenant_id,
        plan={"window": "01:00-06:00", "description": text[:512]},
        job={"input": f"s3://in/{text}", "output": f"s3://out/{text}"},
        problem=ScheduleProblem("key_revoked", text),
    )
    due_at = now - timedelta(minutes=1)
    run = add_run(tx, made, due_at, RunState.SUBMITTED, job_id=job.id, started_at=now)
    add_run(tx, made, due_at - timedelta(days=1), RunState.REFUSED, ended_at=now, reason=text)
    return made.id, made.name, run.id


def add_schedule(
    tx: Transaction,
    tenant_id: str,
    *,
    plan: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Schedule:
    """A schedule of one o'clock every night, with a name of its own. `fields` are the schedule's own."""
    now, id = tx.now(), new_id("sched")
    name = f"nightly-{id[-8:].lower()}"
    made = Plan(name=name, **{"cron": "0 1 * * *"} | dict(plan or {}))
    sent = dict(job or {"input": "s3://in/", "output": "s3://out/{{date}}/"})
    current = a_schedule_version(made, created_at=now, job=sent)
    own = {"next_at": now + timedelta(hours=1), "created_at": now} | fields
    schedule = a_schedule(id=id, tenant_id=tenant_id, name=name, current=current, **own)
    tx.schedules.insert(schedule)
    return schedule


def add_run(tx: Transaction, schedule: Schedule, due_at: datetime, state: RunState, **fields: Any) -> Run:
    run = Run(
        id=new_id("run"),
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        version=1,
        due_at=due_at,
        local_date=str(due_at.date()),
        state=state,
        **fields,
    )
    assert tx.schedules.insert_run(run)
    return run


def _hold(tx: Transaction, job_id: str, worker_id: str) -> None:
    """The shard is in the worker's hands, whichever else waits in the database."""
    held = {
        "state": ShardState.LEASED,
        "worker_id": worker_id,
        "lease_until": tx.now() + timedelta(minutes=1),
    }
    tx._connection.execute(tables.shard.update().where(tables.shard.c.job_id == job_id).values(held))
