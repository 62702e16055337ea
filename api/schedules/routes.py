"""The schedules routes: apply, list, describe, pause, resume, run now, delete; runs and versions."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.schedules import (
    AppliedSchedule,
    DeletedSchedule,
    ScheduleObject,
    SchedulePage,
    SchedulePut,
    ScheduleRun,
    ScheduleRunPage,
    ScheduleVersionPage,
)
from api.dependencies import BodyDep, CallerDep, DryRunDep, ListingDep, ServicesDep
from api.jobs.requests import bulk_job
from api.schedules.views import (
    described_json,
    listed_json,
    run_after,
    run_json,
    schedule_after,
    version_json,
)
from api.services.services import Services
from nightshift.errors import NotFound
from nightshift.jobs import JsonObject, Webhook
from nightshift.jobs.json_text import fingerprint
from nightshift.lifecycle.schedules import changes
from nightshift.lifecycle.schedules.changes import checked_plan, get_schedule
from nightshift.schedules.plans import Schedule, ScheduleVersion, about_job, check_plan
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/schedules", tags=["Schedules"])

ROUTE = "/v1/schedules"

Change = Callable[[Transaction, Schedule, datetime], Schedule]


@router.put(
    "/{schedule_name}",
    summary="Apply a plan: create a schedule, or change it",
    response_model=AppliedSchedule,
)
async def apply_plan(
    schedule_name: str, services: ServicesDep, caller: CallerDep, body: BodyDep, dry_run: DryRunDep = False
) -> Response:
    name = body.get("name")
    fields = parsed(SchedulePut, body | {"name": schedule_name if name is None else name})
    return JSONResponse(await run_in_threadpool(_apply, services, caller, schedule_name, fields, dry_run))


@router.get("", summary="List schedules, newest first", response_model=SchedulePage)
def list_schedules(services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        after = listing.start(lambda id: schedule_after(tx, caller.tenant_id, id))
        schedules = tx.schedules.list(caller.tenant_id, limit=listing.limit + 1, after=after)
        return JSONResponse(listing.json(listed_json(tx, schedules, tx.now())))


@router.get("/{schedule_name}", summary="Describe a schedule", response_model=ScheduleObject)
def describe_schedule(schedule_name: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return JSONResponse(described_json(tx, get_schedule(tx, caller.tenant_id, schedule_name), tx.now()))


@router.delete(
    "/{schedule_name}",
    summary="Delete a schedule with its runs; their jobs stay",
    response_model=DeletedSchedule,
)
def delete_schedule(schedule_name: str, services: ServicesDep, caller: CallerDep) -> Response:
    def delete(tx: Transaction) -> str:
        schedule = get_schedule(tx, caller.tenant_id, schedule_name, is_locked=True)
        changes.delete_schedule(tx, schedule, tx.now())
        return schedule.id

    return JSONResponse(DeletedSchedule(id=services.store.run(delete), name=schedule_name).model_dump())


@router.post(
    "/{schedule_name}/pause", summary="Start no more runs until it is resumed", response_model=ScheduleObject
)
def pause_schedule(schedule_name: str, services: ServicesDep, caller: CallerDep) -> Response:
    return _changed(services, caller, schedule_name, changes.pause)


@router.post("/{schedule_name}/resume", summary="Start runs again from now on", response_model=ScheduleObject)
def resume_schedule(schedule_name: str, services: ServicesDep, caller: CallerDep) -> Response:
    return _changed(services, caller, schedule_name, changes.resume)


@router.post(
    "/{schedule_name}/run",
    summary="Run a schedule now, besides its plan",
    status_code=202,
    response_model=ScheduleRun,
)
def run_schedule(schedule_name: str, services: ServicesDep, caller: CallerDep) -> Response:
    def run_now(tx: Transaction) -> JsonObject:
        schedule = get_schedule(tx, caller.tenant_id, schedule_name, is_locked=True)
        return run_json(schedule, changes.run_now(tx, schedule, tx.now()))

    return JSONResponse(services.store.run(run_now), 202)


@router.get(
    "/{schedule_name}/runs", summary="List a schedule's runs, newest first", response_model=ScheduleRunPage
)
def list_runs(schedule_name: str, services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        schedule = get_schedule(tx, caller.tenant_id, schedule_name)
        after = listing.start(lambda id: run_after(tx, schedule, id))
        runs = tx.schedules.runs(schedule.id, limit=listing.limit + 1, after=after)
        return JSONResponse(listing.json([run_json(schedule, run) for run in runs]))


@router.get(
    "/{schedule_name}/versions",
    summary="List a schedule's plans, newest first",
    response_model=ScheduleVersionPage,
)
def list_versions(
    schedule_name: str, services: ServicesDep, caller: CallerDep, listing: ListingDep
) -> Response:
    with services.store.snapshot() as tx:
        schedule = get_schedule(tx, caller.tenant_id, schedule_name)
        versions = tx.schedules.versions(
            schedule.id, limit=listing.limit + 1, before=listing.start(_version_number)
        )
        return JSONResponse(listing.json([version_json(schedule, version) for version in versions]))


def _apply(services: Services, caller: Caller, name: str, fields: SchedulePut, dry_run: bool) -> JsonObject:
    new = _new_version(services, caller, name, fields)
    change = changes.try_plan if dry_run else changes.apply

    def apply(tx: Transaction) -> JsonObject:
        now = tx.now()
        applied = change(tx, new, caller.tenant_id, services.submitter, now)
        return described_json(tx, applied.schedule, now) | {"change": applied.change}

    if not dry_run:
        return services.store.run(apply)
    with services.store.snapshot() as tx:
        return apply(tx)


def _new_version(services: Services, caller: Caller, name: str, fields: SchedulePut) -> ScheduleVersion:
    """The checked plan, of no schedule yet. Raises InvalidRequest."""
    plan, now = fields.plan(name), services.store.now()
    check_plan(plan, now)
    job_fields, window_max_s = fields.job_fields(), services.settings.submission.completion_window_max_s
    with about_job():
        job = bulk_job(caller.tenant_id, job_fields, fields.job, window_max_s)
    spec, webhook = job.spec, fields.webhook
    if webhook is not None:
        spec = replace(spec, webhook=Webhook(webhook.url, tuple(webhook.events)))
    new = ScheduleVersion(
        version=0,
        created_at=now,
        key_id=caller.key_id,
        fingerprint=fingerprint(ROUTE, fields.model_dump(mode="json") | {"name": name}),
        plan=plan,
        job=fields.job,
        webhook=None if webhook is None else webhook.model_dump(exclude={"secret"}),
        spec=spec.to_json(),
        priority=job.priority,
    )
    secret = None if webhook is None else webhook.secret
    return checked_plan(new, caller.tenant_id, services.submitter, caller.priority_ceiling, secret)


def _changed(services: Services, caller: Caller, name: str, change: Change) -> Response:
    def work(tx: Transaction) -> JsonObject:
        schedule, now = get_schedule(tx, caller.tenant_id, name, is_locked=True), tx.now()
        return described_json(tx, change(tx, schedule, now), now)

    return JSONResponse(services.store.run(work))


def _version_number(after: str) -> int:
    if not after.isascii() or not after.isdecimal() or len(after) > 9:
        raise NotFound(f"No such version: {after}", param="after")
    return int(after)
