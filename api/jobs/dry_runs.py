"""`POST /v1/jobs?dry_run=true`: what a submission would do, without one.

It checks what a submission checks, in transactions that only read, and raises the same errors. What would be
refused for now only, by a limit or a quota, and what is wrong with the input, is in the answer.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.jobs.idempotency import Repeatable
from api.responses.times import seconds
from api.services.preview_child import PreviewRequest
from api.services.previews import Parts
from api.services.services import Services
from nightshift.bulk.rows.previews import PreviewedObjects, Problem, ShownRequest
from nightshift.errors import (
    Conflict,
    IdempotencyKeyReused,
    MissingScope,
    QuotaExceeded,
    TooManyRequests,
)
from nightshift.fleet.models import Model
from nightshift.jobs import JobKind, JsonObject, NewJob
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.schedules.changes import check_name
from nightshift.store import Transaction
from nightshift.tenants.holdings import QUEUED, Holding
from nightshift.tenants.keys import Scope
from nightshift.tenants.rates import tokens_asked


class DryRunRefusal(BaseModel):
    """The 429 or 409 that a submission would get now."""

    code: str | None
    message: str
    retry_after_s: float | None


class DryRunLimit(BaseModel):
    """A quota of what is queued. `limit` null: unlimited. `needed`: by this job, as estimated."""

    limit: int | None
    used: int
    needed: int | None


class DryRun(BaseModel):
    object: Literal["job.dry_run"] = "job.dry_run"
    would_be_accepted: bool
    existing_job_id: str | None  # of the same Idempotency-Key, or name and date: that job is the answer
    refusal: DryRunRefusal | None
    kind: JobKind
    endpoint: str
    model: str | None
    priority: PriorityClass  # the effective one
    expires_at: int  # if submitted now
    limits: dict[str, DryRunLimit]
    input: PreviewedObjects | None
    rows_checked: int
    rows_with_problems: int  # of these
    requests: list[ShownRequest]
    problems: list[Problem]
    is_cut_off: bool  # reading the input took more than a dry run may take


EMPTY_INPUT: Final = Problem(code="empty_input", message="The input has no rows.", param="input")


@dataclass(frozen=True)
class _Checked:
    """A submission, as the database sees it now."""

    now: datetime
    existing_job_id: str | None
    refusal: TooManyRequests | Conflict | None
    filename: str | None
    models: Mapping[str, Model]


async def dry_run(
    services: Services, caller: Caller, new: NewJob, body: JsonObject | None, repeatable: Repeatable
) -> DryRun:
    """`body`: of an online job. Raises what a submission raises, but TooManyRequests only for dry runs."""
    if Scope.READ not in caller.scopes:
        raise MissingScope(
            "A dry run by POST /v1/jobs shows rows of the input: this API key lacks the scope 'read'."
        )
    checked = await run_in_threadpool(_checked, services, new, body, repeatable)
    preview: Parts = {"PreviewedRows": {}}  # there is no input
    if new.kind is JobKind.BULK:
        request = preview_request(services, new, checked.filename, checked.models)
        preview = await services.previews.look(request)
    return await run_in_threadpool(_answer, services, caller, new, body, checked, preview)


def preview_request(
    services: Services,
    new: NewJob,
    filename: str | None,
    models: Mapping[str, Model],
    *,
    is_sampled: bool = False,
) -> PreviewRequest:
    """Asks for a look at a job's input, also for an estimate. `filename`: of an input that was uploaded."""
    return PreviewRequest(
        data=services.settings.data,
        places=services.settings.locations,
        spec=new.spec,
        tenant_id=new.tenant_id,
        filename=filename,
        line_bytes_max=services.settings.submission.line_bytes_max,
        models=models,
        answer_bytes_max=services.settings.submission.answer_bytes_max,
        is_sampled=is_sampled,
    )


def _checked(services: Services, new: NewJob, body: JsonObject | None, repeatable: Repeatable) -> _Checked:
    submitter = services.submitter
    with services.store.snapshot() as tx:
        now = tx.now()
        existing = _existing(tx, repeatable, now)
        refusal = None
        try:
            if body is not None:
                submitter.try_online(tx, new, body, now)
            else:
                check_name(tx, new.tenant_id, new.spec.name)
                submitter.try_bulk(tx, new, now)
        except (TooManyRequests, Conflict) as error:
            refusal = error if existing is None else None
        file = submitter.try_file(tx, new, now)
        models = services.catalogue.read(tx).registered
    return _Checked(now, existing, refusal, None if file is None else file.filename, models)


def _existing(tx: Transaction, repeatable: Repeatable, now: datetime) -> str | None:
    """The job that this submission made before. Raises IdempotencyKeyReused."""
    if repeatable.key is None:
        return None
    kept = tx.idempotency.find(repeatable.tenant_id, repeatable.key, now)
    if kept is not None and kept.fingerprint != repeatable.fingerprint:
        raise IdempotencyKeyReused(param="Idempotency-Key")
    return None if kept is None else kept.job_id


def _answer(
    services: Services,
    caller: Caller,
    new: NewJob,
    body: JsonObject | None,
    checked: _Checked,
    preview: Parts,
) -> DryRun:
    objects, rows = preview.get("PreviewedObjects"), preview.get("PreviewedRows", {})
    model = new.model or rows.get("model")
    needed = _needed(body, objects or {})
    unreadable = [preview["Problem"]] if "Problem" in preview else []
    problems = [Problem(**problem) for problem in (*unreadable, *rows.get("problems", ()))]
    with services.store.snapshot() as tx:
        held = tx.holdings.total(new.tenant_id)
        if new.kind is JobKind.BULK:
            problems = [*_of_the_job(services, tx, new, preview, needed), *problems]
    limits = caller.quotas.to_json()
    return DryRun(
        would_be_accepted=checked.refusal is None,
        existing_job_id=checked.existing_job_id,
        refusal=None if checked.refusal is None else _shown(checked.refusal),
        kind=new.kind,
        endpoint=new.spec.endpoint,
        model=model,
        priority=new.priority,
        expires_at=seconds(checked.now + timedelta(seconds=new.spec.completion_window_s)),
        limits={
            name: DryRunLimit(
                limit=limits.get(name),
                used=getattr(held, name),
                needed=None if needed is None else getattr(needed, name),
            )
            for name in QUEUED
        },
        input=None if objects is None else PreviewedObjects(**objects),
        rows_checked=rows.get("rows_checked", 0),
        rows_with_problems=rows.get("rows_with_problems", 0),
        requests=rows.get("requests", []),
        problems=problems,
        is_cut_off="PreviewedRows" not in preview and not unreadable,
    )


def _needed(body: JsonObject | None, objects: JsonObject) -> Holding | None:
    """The share of quotas that the job would take once its input is read; None if that is not known."""
    if body is not None:
        return Holding(online_requests=1, queued_tokens=tokens_asked(body, len(json.dumps(body))) or 0)
    if objects.get("rows_estimated") is None:
        return None
    return Holding(bulk_rows=objects["rows_estimated"], queued_tokens=objects["tokens_estimated"])


def _of_the_job(
    services: Services, tx: Transaction, new: NewJob, preview: Parts, needed: Holding | None
) -> Iterator[Problem]:
    """The reasons why planning would refuse the job, apart from what could not be read."""
    objects, rows = preview.get("PreviewedObjects", {}), preview.get("PreviewedRows")
    # The part of a longer input that was read may be empty: then nothing is known of the rest.
    if rows is not None and rows["is_end"] and objects["is_whole"] and not rows["rows_checked"]:
        yield EMPTY_INPUT
    yield from planning_problems(services, tx, new, (rows or {}).get("model"), needed)


def planning_problems(
    services: Services, tx: Transaction, new: NewJob, model: str | None, needed: Holding | None
) -> Iterator[Problem]:
    """The reasons why planning would refuse a job of this model that takes so much of quotas; None: not
    known.
    """
    objection = services.catalogue.read(tx).objection(model, new.spec.endpoint) if model else None
    if objection is not None:
        yield Problem(code=objection.code, message=objection.message, param=objection.param)
    try:
        if needed is not None:
            services.submitter.try_plan(tx, new, needed.bulk_rows, needed.queued_tokens)
    except QuotaExceeded as error:
        yield Problem(code=str(error.code), message=error.message, param=error.param or "input")


def _shown(error: TooManyRequests | Conflict) -> DryRunRefusal:
    retry_after_s = None
    if isinstance(error, TooManyRequests) and error.retry_helps:
        retry_after_s = error.retry_after_s
    return DryRunRefusal(code=error.code, message=error.message, retry_after_s=retry_after_s)
