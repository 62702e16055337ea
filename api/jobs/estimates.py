"""`POST /v1/jobs/estimate`: what a bulk job would take, without running it.

The input is surveyed as for a dry run, and a sample of its rows runs as a small job in the last class, which
has the estimate's id (`nightshift/lifecycle/samples.py`). The figures are made whenever it is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.jobs import EstimateCreate
from api.dependencies import BodyDep, CallerDep, ServicesDep, get_job
from api.jobs.dry_runs import EMPTY_INPUT, DryRunProblem
from api.jobs.requests import bulk_job
from api.services.preview_child import PreviewRequest
from api.services.services import Services
from nightshift.bulk.results.segments import read_segment
from nightshift.errors import MissingScope, NotFound, QuotaExceeded
from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.fleet.models import Model
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import Job, JsonObject, NewJob
from nightshift.jobs.capacity.demand import ANY_CAPACITY, Pool, serving
from nightshift.jobs.capacity.estimates import Prices, SampleResults, Survey, Tokens, estimate
from nightshift.jobs.files import file_key
from nightshift.lifecycle import samples
from nightshift.lifecycle.reuse import with_reused_job
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope
from nightshift.tenants.rates import CHARS_PER_TOKEN

EVENTS_MAX: Final = 10_000  # of a sample
SEGMENTS_MAX: Final = 10_000
NO_WORKER: Final = "no_worker"
FIGURES: Final = (
    *("rows_to_run", "rows_too_long", "rows_failing", "prompt_tokens", "completion_tokens"),
    *("rows_per_worker_s", "eta_s", "workers_wanted", "worker_hours", "cost", "spot_cost", "saving"),
)
CUT_OFF: Final = DryRunProblem(
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
    rows_to_run: int | None
    rows_too_long: int | None
    rows_failing: int | None
    prompt_tokens: Tokens | None
    completion_tokens: Tokens | None
    rows_per_worker_s: float | None
    eta_s: float | None  # on the workers that are ready, if they had nothing else to do
    workers_ready: int
    window_s: int
    workers_wanted: int | None  # to end within the window
    worker_hours: float | None
    cost: float | None
    spot_cost: float | None
    saving: float | None
    problems: list[DryRunProblem]


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
    parts = await services.previews.parts(
        PreviewRequest(
            data=services.settings.data,
            places=services.settings.locations,
            spec=new.spec,
            tenant_id=new.tenant_id,
            filename=filename,
            line_bytes_max=services.settings.submission.line_bytes_max,
            models=models,
            answer_bytes_max=services.settings.submission.answer_bytes_max,
            is_sampled=True,
        )
    )
    terms = _terms(new, fields, services, parts.get("Survey", ()))
    problems = [DryRunProblem(**problem) for problem in parts.get("Problem", ())]
    if terms.survey is None and not problems:
        problems = [CUT_OFF]
    lines = [line for part in parts.get("SampleLines", ()) for line in part["lines"]]
    storage = services.storage_threads.for_tenant(caller.tenant_id)
    shown = await storage.run(lambda: _created(services, caller, new, terms, lines, problems))
    return JSONResponse(shown.model_dump(mode="json"), 202 if shown.status == "running" else 200)


@router.get("/estimate/{estimate_id}", summary="Describe an estimate", response_model=EstimateObject)
async def describe_estimate(estimate_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    storage = services.storage_threads.for_tenant(caller.tenant_id)
    shown = await storage.run(lambda: _described(services, caller, estimate_id))
    return JSONResponse(shown.model_dump(mode="json"))


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """All that an estimate needs beside the sample's results. The sample's job keeps it."""

    survey: Survey | None  # None: the input could not be read
    endpoint: str
    pool: Pool
    window_s: int
    prices: Prices
    sample_rows: int = 0

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        """The terms that a sample's job keeps."""
        parts = {
            "survey": Survey.from_json(data["survey"]),
            "pool": Pool(**data["pool"]),
            "prices": Prices(**data["prices"]),
        }
        return cls(**data | parts)


def _terms(new: NewJob, fields: EstimateCreate, services: Services, surveys: Sequence[JsonObject]) -> _Terms:
    survey = Survey.from_json(surveys[0]) if surveys else None
    model = new.model or (survey.model if survey else None)
    known = services.settings.api.prices
    return _Terms(
        survey=survey,
        endpoint=new.spec.endpoint,
        pool=Pool(model or "", new.spec.capacity, new.spec.options.pool or ""),
        window_s=_window_s(new),
        prices=Prices(
            hour=fields.gpu_hour_price or known.on_demand, spot_hour=fields.spot_price or known.spot
        ),
    )


def _window_s(new: NewJob) -> int:
    """Seconds within which the job is to end."""
    hours = new.spec.hours
    return new.spec.completion_window_s if hours is None else hours.length_s


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
    problems: Sequence[DryRunProblem],
) -> EstimateObject:
    """Blocks on the object store."""
    with services.store.snapshot() as tx:
        further = [] if terms.survey is None else _problems(services, tx, new, terms, terms.survey)
        problems = [*problems, *further]
        if any(problem.code == NO_WORKER or problem.is_permanent for problem in problems) or not lines:
            return _shown(tx, None, terms, problems, SampleResults(rows=0))
    terms = replace(terms, sample_rows=len(lines))
    sample = samples.as_sample(new, terms.to_json())
    key = file_key(caller.tenant_id, sample.spec.input or "")
    stored = services.objects.put(key, ((line + "\n").encode() for line in lines))
    job = services.store.run(
        lambda tx: samples.submit(tx, sample, stored, services.submitter, caller.quotas, tx.now())
    )
    services.ring_sender.hint()
    with services.store.snapshot() as tx:
        return _shown(tx, job, terms, problems, SampleResults(rows=len(lines)))


def _problems(
    services: Services, tx: Transaction, new: NewJob, terms: _Terms, survey: Survey
) -> Iterator[DryRunProblem]:
    """The reasons that would keep the job from running, apart from what could not be read."""
    model = terms.pool.model
    if not survey.rows:
        yield EMPTY_INPUT
        return
    objection = services.catalogue.read(tx).objection(model, terms.endpoint) if model else None
    if objection is not None:
        yield DryRunProblem(code=objection.code, message=objection.message, param=objection.param)
    elif not serving(tx.workers.alive(tx.now() - ALIVE_WITHIN), terms.pool):
        yield DryRunProblem(code=NO_WORKER, message=_no_worker(terms.pool), param="model", is_permanent=False)
    try:
        services.submitter.try_plan(tx, new, survey.rows, survey.size_bytes // CHARS_PER_TOKEN)
    except QuotaExceeded as error:
        yield DryRunProblem(code=str(error.code), message=error.message, param="input", is_permanent=False)


def _no_worker(pool: Pool) -> str:
    """The message where no worker may run the job."""
    where = f" in the pool '{pool.name}'" if pool.name else ""
    kind = "" if pool.capacity == ANY_CAPACITY else f" {pool.capacity}"
    return (
        f"No{kind} worker{where} serves '{pool.model}' at present, so no sample was run. Start one, and "
        "estimate again."
    )


def _described(services: Services, caller: Caller, job_id: str) -> EstimateObject:
    """Blocks on the object store."""
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        if job.spec.estimate is None:
            raise NotFound(f"No such Estimate object: {job_id}", param="id")
        if job.results_deleted_at is not None:
            raise NotFound("The sample has had its time and is deleted.", code="results_deleted")
        terms = _Terms.from_json(job.spec.estimate)
        if not job.state.is_terminal:
            return _shown(tx, job, terms, (), SampleResults(rows=terms.sample_rows))
        events = tx.events.after(caller.tenant_id, job.id, 0, EVENTS_MAX)
        listed = tx.shards.segments_of_job(caller.tenant_id, job.id, limit=SEGMENTS_MAX)
    results = (result for one in listed for result in read_segment(services.objects, one.segment))
    sample = samples.results_of(job, terms.sample_rows, results, events)
    with services.store.snapshot() as tx:
        return _shown(tx, job, terms, () if sample.run else (_none_ended(job, sample),), sample)


def _none_ended(job: Job, sample: SampleResults) -> DryRunProblem:
    """The reason why a sample tells nothing."""
    said = job.errors[0].message if job.errors else "No row of the sample ended in time."
    return DryRunProblem(code=job.errors[0].code if job.errors else "sample_too_slow", message=said)


def _shown(
    tx: Transaction, job: Job | None, terms: _Terms, problems: Sequence[DryRunProblem], sample: SampleResults
) -> EstimateObject:
    """The estimate as it is known now. `sample`: its results, once it has ended."""
    alive = tx.workers.alive(tx.now() - ALIVE_WITHIN)
    ready = sum(worker.state is WorkerState.READY for worker in serving(alive, terms.pool))
    recorded = tx.figures.latest()
    survey, figures = terms.survey, None
    if survey is not None and survey.rows:
        paces = recorded.rows_per_busy_s if recorded else {}
        figures = estimate(
            survey,
            sample,
            workers=ready,
            within_s=terms.window_s,
            prices=terms.prices,
            recorded_rows_per_s=paces.get(terms.pool.model),
        )
    shown: dict[str, Any] = {name: getattr(figures, name, None) for name in FIGURES}
    has_ended = job is None or job.state.is_terminal
    is_good = figures is not None and bool(sample.prompt_tokens)
    return EstimateObject(
        id=None if job is None else job.id,
        status="running" if not has_ended else "succeeded" if is_good else "failed",
        endpoint=terms.endpoint,
        model=terms.pool.model or None,
        input=survey,
        sample=None if job is None else _sample_object(job, sample),
        workers_ready=ready,
        window_s=terms.window_s,
        problems=list(problems),
        **shown,
    )


def _sample_object(job: Job, sample: SampleResults) -> SampleObject:
    ended = sample.run + sample.reused or job.counts.succeeded + job.counts.failed
    return SampleObject(
        rows=sample.rows,
        rows_ended=min(ended, sample.rows),
        errors=dict(sample.failures),
        shares_answers=sample.reused > 0,
    )
