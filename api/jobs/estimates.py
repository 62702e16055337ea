"""`POST /v1/jobs/estimate`: what a bulk job would take, without running it.

The input is surveyed as for a dry run, and a sample of its rows runs as a small job in the last class, which
has the estimate's id (`nightshift/lifecycle/samples.py`). The figures are made whenever it is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, TypeAdapter
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.jobs import EstimateCreate
from api.dependencies import BodyDep, CallerDep, ServicesDep, get_job
from api.jobs.dry_runs import EMPTY_INPUT, planning_problems, preview_request
from api.jobs.requests import bulk_job
from api.services.services import Services
from nightshift.bulk.results.segments import read_segment
from nightshift.bulk.rows.previews import Problem
from nightshift.errors import MissingScope, NotFound
from nightshift.fleet.costs import Prices
from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.fleet.models import Model
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs import Job, JobState, NewJob
from nightshift.jobs.capacity.demand import ANY_CAPACITY, Pool, serving
from nightshift.jobs.capacity.estimates import Estimate, SampleResults, Survey, estimate
from nightshift.jobs.files import file_key
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import samples
from nightshift.lifecycle.reuse import with_reused_job
from nightshift.store import Transaction
from nightshift.tenants.holdings import Holding
from nightshift.tenants.keys import Scope
from nightshift.tenants.rates import CHARS_PER_TOKEN

EVENTS_MAX: Final = 10_000  # of a sample
SEGMENTS_MAX: Final = 10_000
NO_WORKER: Final = "no_worker"
CUT_OFF: Final = Problem(
    code="input_too_costly", message="Reading the input took more than an estimate may take.", param="input"
)

router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])


class SampleObject(BaseModel):
    rows: int
    rows_ended: int
    errors: dict[str, int]  # rows that failed, by their error's code
    shares_answers: bool  # equal requests have equal answers, and run once


class EstimateObject(BaseModel):
    object: Literal["job.estimate"] = "job.estimate"
    id: str | None  # of the sample's job; null: there is none
    status: Literal["running", "succeeded", "failed"]
    endpoint: str
    model: str | None
    input: Survey | None
    sample: SampleObject | None
    figures: Estimate | None  # null while the sample runs
    workers_ready: int
    window_s: int
    problems: list[Problem]


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """All that an estimate needs beside the sample's results. The sample's job keeps it, as JSON."""

    survey: Survey | None  # None: the input could not be read
    endpoint: str
    pool: Pool
    priority: PriorityClass  # of the job, not of its sample
    window_s: int
    prices: Prices
    sample_rows: int = 0


_TERMS: Final = TypeAdapter(_Terms)


@router.post(
    "/estimate",
    summary="Estimate a bulk job by a sample of its rows",
    status_code=202,
    response_model=EstimateObject,
)
async def create_estimate(services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    if Scope.READ not in caller.scopes:
        raise MissingScope("An estimate shows what is in the input: this API key lacks the scope 'read'.")
    fields = parsed(EstimateCreate, body)
    new = bulk_job(caller.tenant_id, fields, body, services.settings.submission.completion_window_max_s)
    new, filename, models = await run_in_threadpool(_checked, services, caller, new)
    request = preview_request(services, new, filename, models, is_sampled=True)
    parts = await services.previews.look(request)
    surveyed = parts.get("Surveyed", {"survey": None, "lines": []})
    survey, lines = surveyed["survey"] and Survey(**surveyed["survey"]), surveyed["lines"]
    model = new.model or (survey.model if survey else None)
    known = services.settings.api.prices
    terms = _Terms(
        survey=survey,
        endpoint=new.spec.endpoint,
        pool=Pool(model or "", new.spec.capacity, new.spec.options.pool or ""),
        priority=new.priority,
        window_s=new.spec.completion_window_s if new.spec.hours is None else new.spec.hours.length_s,
        prices=Prices(fields.spot_price or known.spot, fields.gpu_hour_price or known.on_demand),
        sample_rows=len(lines),
    )
    problems = [Problem(**parts["Problem"])] if "Problem" in parts else []
    if survey is None and not problems:
        problems = [CUT_OFF]
    storage = services.storage_threads.for_tenant(caller.tenant_id)
    shown = await storage.run(lambda: _created(services, caller, new, terms, lines, problems))
    return JSONResponse(shown.model_dump(mode="json"), 202 if shown.status == "running" else 200)


@router.get("/estimate/{estimate_id}", summary="Describe an estimate", response_model=EstimateObject)
async def describe_estimate(estimate_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    storage = services.storage_threads.for_tenant(caller.tenant_id)
    shown = await storage.run(lambda: _described(services, caller, estimate_id))
    return JSONResponse(shown.model_dump(mode="json"))


def _checked(
    services: Services, caller: Caller, new: NewJob
) -> tuple[NewJob, str | None, Mapping[str, Model]]:
    """The job with the one that it reuses, its uploaded file's name, and the registered models. Raises what a
    submission raises, but for its output, which is not written.
    """
    submitter = services.submitter
    new = submitter.check(new, caller.priority_ceiling)
    unwritten = replace(new, spec=replace(new.spec, output=None))
    with services.store.snapshot() as tx:
        now = tx.now()
        submitter.try_bulk(tx, unwritten, now)
        file = submitter.try_file(tx, new, now)
        models = services.catalogue.read(tx).registered
        return with_reused_job(tx, new), None if file is None else file.filename, models


def _created(
    services: Services,
    caller: Caller,
    new: NewJob,
    terms: _Terms,
    lines: Sequence[str],
    problems: list[Problem],
) -> EstimateObject:
    """Blocks on the object store."""
    with services.store.snapshot() as tx:
        if terms.survey is not None:
            problems = [*problems, *_problems(services, tx, new, terms, terms.survey)]
        if problems or not lines:
            return _shown(tx, None, terms, problems)
    sample = samples.as_sample(new, asdict(terms))
    key = file_key(caller.tenant_id, sample.spec.input or "")
    stored = services.objects.put(key, ((line + "\n").encode() for line in lines))
    job = services.store.run(
        lambda tx: samples.submit(tx, sample, stored, services.submitter, caller.quotas, tx.now())
    )
    services.ring_sender.hint()
    with services.store.snapshot() as tx:
        return _shown(tx, job, terms, problems)


def _problems(
    services: Services, tx: Transaction, new: NewJob, terms: _Terms, survey: Survey
) -> list[Problem]:
    """The reasons that would keep the job from running, apart from what could not be read."""
    if not survey.rows:
        return [EMPTY_INPUT]
    needed = Holding(bulk_rows=survey.rows, queued_tokens=survey.size_bytes // CHARS_PER_TOKEN)
    problems = [*planning_problems(services, tx, new, terms.pool.model or None, needed)]
    if not problems and not _serving(tx, terms.pool):
        message = _no_worker(terms.pool)
        problems.append(Problem(code=NO_WORKER, message=message, param="model", is_permanent=False))
    return problems


def _serving(tx: Transaction, pool: Pool) -> list[Worker]:
    return serving(tx.workers.alive(tx.now() - ALIVE_WITHIN), pool)


def _no_worker(pool: Pool) -> str:
    """The message where no worker may run the job."""
    kind = "worker" if pool.capacity == ANY_CAPACITY else f"{pool.capacity} worker"
    where = f" in the pool '{pool.name}'" if pool.name else ""
    return f"No {kind}{where} serves '{pool.model}', so no sample was run. Start one, and estimate again."


def _described(services: Services, caller: Caller, job_id: str) -> EstimateObject:
    """Blocks on the object store."""
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        if job.spec.estimate is None:
            raise NotFound(f"No such Estimate object: {job_id}", param="id")
        if job.results_deleted_at is not None:
            raise NotFound("The sample has had its time and is deleted.", code="results_deleted")
        terms = _TERMS.validate_python(job.spec.estimate)
        if not job.state.is_terminal:
            return _shown(tx, job, terms)
        events = tx.events.after(caller.tenant_id, job.id, 0, EVENTS_MAX)
        listed = tx.shards.segments_of_job(caller.tenant_id, job.id, limit=SEGMENTS_MAX)
    results = (result for one in listed for result in read_segment(services.objects, one.segment))
    sample = samples.results_of(job, results, events)
    with services.store.snapshot() as tx:
        return _shown(tx, job, terms, [] if sample.done else [_no_pace(job, sample)], sample)


def _no_pace(job: Job, sample: SampleResults) -> Problem:
    """The reason why a sample tells no pace, and perhaps nothing."""
    if sample.run:
        message = "A worker was lost or gave rows of the sample back: the pace is the one recorded."
        return Problem(code="sample_interrupted", message=message, is_permanent=False)
    if job.errors:
        return Problem(code=job.errors[0].code, message=job.errors[0].message)
    is_cancelled = job.state is JobState.CANCELLED
    return Problem(
        code="sample_cancelled" if is_cancelled else "sample_too_slow",
        message=f"No row of the sample ended before it was {job.state}.",
        is_permanent=False,
    )


def _shown(
    tx: Transaction,
    job: Job | None,
    terms: _Terms,
    problems: Sequence[Problem] = (),
    sample: SampleResults = SampleResults(),
) -> EstimateObject:
    """The estimate as it is known now. `sample`: its results, once it has ended."""
    ready = sum(worker.state is WorkerState.READY for worker in _serving(tx, terms.pool))
    figures, is_running = None, job is not None and not job.state.is_terminal
    if terms.survey is not None and terms.survey.rows and not is_running:
        recorded, model = tx.figures.latest(), terms.pool.model
        figures = estimate(
            terms.survey,
            sample,
            workers=ready,
            within_s=terms.window_s,
            prices=terms.prices,
            recorded_rows_per_s=recorded.rows_per_busy_s.get(model) if recorded else None,
            rows_ahead=tx.load.rows_left(model, terms.priority.rank),
        )
    is_good = figures is not None and figures.prompt_tokens is not None
    return EstimateObject(
        id=None if job is None else job.id,
        status="running" if is_running else "succeeded" if is_good else "failed",
        endpoint=terms.endpoint,
        model=terms.pool.model or None,
        input=terms.survey,
        sample=None if job is None else _sample_object(job, sample, terms.sample_rows),
        figures=figures,
        workers_ready=ready,
        window_s=terms.window_s,
        problems=list(problems),
    )


def _sample_object(job: Job, sample: SampleResults, rows: int) -> SampleObject:
    ended = sample.run + sample.reused or job.counts.succeeded + job.counts.failed
    return SampleObject(
        rows=rows,
        rows_ended=min(ended, rows),
        errors=dict(sample.failures),
        shares_answers=sample.reused > 0,
    )
