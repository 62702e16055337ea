"""Plans jobs: cuts their input into shards that workers may claim, or fails them with the reasons.

An input becomes pages of shards, each recorded in a transaction with the cursor from which the next one goes
on. Rows of a page run while others are cut; of two schedulers one writes a page. A job gives its thread back
after `turn_s`.

An attempt is counted in the database before it starts, and taken back once its end is known. A job with
attempts left over may have killed a scheduler: such jobs are planned one at a time, and after `attempts_max`
of them at one page the job fails.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from nightshift.bulk.results.destinations import OutputTrouble
from nightshift.bulk.results.part_writer import problem_of
from nightshift.bulk.rows.validation import FileLimits
from nightshift.errors import DatabaseUnavailable, InvalidRequest, StorageError
from nightshift.jobs import Face, Fault, InputError, Job
from nightshift.jobs.leases import Lead
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore import Locations
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import as_input_error, input_fault, storage_verdict
from nightshift.process import failpoints
from nightshift.process.tracing.attributes import JOB, OUTCOME, PAGE, TENANT
from nightshift.process.tracing.spans import Value, end, follow
from nightshift.store import PendingWork, Store
from nightshift.tenants.quotas import NO_QUOTAS, Quotas, may_take
from scheduler.input.pages import Refused, ShardPage
from scheduler.input.retry_inputs import RetryInputs
from scheduler.input.surveying import SurveyConfig, Surveyor
from scheduler.input.validation import plan_file
from scheduler.input.writing import PlanOutcome, PlanWriter, param_of
from scheduler.output.earlier_runs import check_output
from scheduler.runtime.duty import Interrupted, MayContinue, PassResult, RingSender, working_under
from scheduler.runtime.thread_pools import POSTPONED, JobPool, JobPoolConfig, in_turn

log = logging.getLogger(__name__)

QUOTA_USED_UP: Final = InputError(
    "insufficient_quota",
    "The rest of the input waits until rows of this tenant have ended: its quota allows no more in the queue",
)
BROKEN: Final = InputError(
    "internal_error", "An unforeseen error of the service keeps the input from being read"
)
SILENT: Final = InputError(
    "storage_unavailable",
    "The input cannot be read at present: its store has not answered yet",
    param="input",
)
SILENT_S: Final = (
    8.0  # without a step; then the job's owner is told, before the store's time limits end the attempt
)
INPUTS_MAX: Final = 8  # read at once; a tenant alone has half of them


@dataclass(frozen=True)
class PlanningConfig:
    file: FileLimits  # for OpenAI routes
    survey: SurveyConfig  # for native jobs
    announced_models: tuple[str, ...] = ()  # known before a worker has registered them
    interval_s: float = 0.25  # between passes: what a small job waits before it may run
    pool: JobPoolConfig = field(default_factory=lambda: JobPoolConfig(threads_max=INPUTS_MAX))
    attempts_max: int = 3  # at one page of a job, whose schedulers died
    turn_s: float = 5.0  # then a job's next pages wait for others; each turn lists anew from the cursor
    default_quotas: Quotas = NO_QUOTAS


@dataclass(frozen=True, kw_only=True)
class Planned(PassResult):
    states = frozenset({"started", "yielded", "postponed"})

    started: int = 0
    planned: int = 0
    yielded: int = 0  # turns of jobs that have further pages
    refused: int = 0  # jobs that failed because of their input
    postponed: int = 0  # storage was away, or a quota used up
    too_late: int = 0  # jobs cancelled, or planned by another scheduler, meanwhile


class Planning:
    name = "planning"

    def __init__(
        self,
        store: Store,
        ring_sender: RingSender,
        sources: Sources,
        locations: Locations,
        config: PlanningConfig,
        lead: Callable[[], Lead | None],
        retries: RetryInputs,
        may_continue: MayContinue = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._retries = retries
        self._lead = lead
        self._writer = PlanWriter(store, ring_sender, config.default_quotas)
        self._sources = sources
        self._locations = locations
        self._config = config
        self._may_continue = may_continue
        self._clock = clock
        self._surveyor = Surveyor(store, sources, locations, config.survey)
        self._pool = JobPool(self.name, self._waiting, self._plan, config.pool, self._may_start)
        self._stopped: frozenset[str] = frozenset()  # jobs under way that were stopped
        self._stepped_s: dict[str, float] = {}  # when each job under way made its last step
        self._turns: dict[str, int] = {}  # when each tenant with unplanned jobs was last served
        self._turn = 0
        self.interval_s = config.interval_s
        self.wait_until_idle = self._pool.wait_until_idle

    @property
    def blocked_s(self) -> float:
        return self._pool.blocked_s

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.is_unplanned or self._pool.is_busy else None

    def run_once(self, now: datetime) -> Planned:
        self._notice_stops()
        self._notice_silence(now)
        pass_ = self._pool.run_once(now, self._first_of_each_tenant())
        for job in pass_.started:
            self._turn += 1
            self._turns[job.tenant_id] = self._turn
        return Planned(
            started=len(pass_.started),
            planned=pass_.ended[PlanOutcome.PLANNED],
            yielded=pass_.ended[PlanOutcome.YIELDED],
            refused=pass_.ended[PlanOutcome.REFUSED],
            postponed=pass_.ended[POSTPONED],
            too_late=pass_.ended[PlanOutcome.TOO_LATE],
        )

    def _notice_stops(self) -> None:
        ids = [job.id for job in self._pool.under_way]
        if ids:
            with self._store.snapshot() as tx:
                self._stopped = frozenset(ids) - tx.jobs.still_to_plan(ids)

    def _notice_silence(self, now: datetime) -> None:
        silent_since_s = self._clock() - SILENT_S
        for job_id in [id for id, at_s in list(self._stepped_s.items()) if at_s <= silent_since_s]:
            self._stepped_s[job_id] = float("inf")  # it is told once
            with self._store.transaction() as tx:
                tx.jobs.record_input_fault(job_id, Fault(error=SILENT, met_at=now))

    def _first_of_each_tenant(self) -> Sequence[Job]:
        """The first jobs of tenants, however many another tenant has before them."""
        if self._pool.is_full:
            return ()
        with self._store.snapshot() as tx:
            jobs = tx.jobs.first_to_plan(self._config.pool.jobs_looked_at_max, self._config.pool.threads_max)
        self._turns = {job.tenant_id: self._turns.get(job.tenant_id, 0) for job in jobs}
        return in_turn(jobs, self._turns)

    def _may_start(self, job: Job, under_way: Sequence[Job]) -> bool:
        free = self._config.pool.threads_max - len(under_way)
        return may_plan_beside(job, under_way, free)

    def _waiting(self, limit: int, after: Job | None) -> Sequence[Job]:
        with self._store.snapshot() as tx:
            return tx.jobs.to_plan(limit, after)

    def _plan(self, job: Job) -> PlanOutcome:
        """Raises StorageError, DatabaseUnavailable and Interrupted: the job stays queued."""
        lead = self._lead()
        if lead is None:
            raise Interrupted
        with self._store.transaction() as tx:
            attempts = tx.jobs.begin_planning(job.id, lead)
            job = tx.jobs.fetch(job.id)  # with its template
        if attempts is None:
            return PlanOutcome.TOO_LATE
        failpoints.hit("scheduler.planning")
        self._stepped_s[job.id] = self._clock()
        try:
            outcome = self._traced_attempt(job, attempts)
        except MemoryError:  # the next process may be killed for it
            raise
        except Exception as error:
            self._end_attempt(job, _fault(job, error))
            raise
        finally:
            self._stepped_s.pop(job.id, None)
        if outcome not in (PlanOutcome.PLANNED, PlanOutcome.REFUSED):
            self._end_attempt(job, QUOTA_USED_UP if outcome is PlanOutcome.POSTPONED else None)
        return outcome

    def _traced_attempt(self, job: Job, attempts: int) -> PlanOutcome:
        span = follow(job.traceparent, "plan")
        with working_under(span):
            outcome = self._attempt(job, attempts)
            about: dict[str, Value] = {JOB: job.id, TENANT: job.tenant_id}
            about |= {PAGE: job.plan_cursor.page, OUTCOME: outcome.value}
            end(span, about, error=outcome.value if outcome is PlanOutcome.REFUSED else None)
        return outcome

    def _end_attempt(self, job: Job, why: InputError | None) -> None:
        with self._store.transaction() as tx:
            fault = None if why is None else Fault(error=why, met_at=tx.now())
            tx.jobs.end_planning(job.id, fault)

    def _attempt(self, job: Job, attempts: int) -> PlanOutcome:
        if attempts > self._config.attempts_max:
            return self._writer.refuse(job, (_given_up(job, attempts - 1),))
        assert job.spec.input is not None, "a bulk job has an input"
        objection = self._objection_to_output(job)
        if objection is not None:
            return self._writer.refuse(job, (objection,))
        pages, ends_s = self._pages(job), self._clock() + self._config.turn_s
        while True:
            try:
                page = next(pages)
            except Refused as refused:
                return self._writer.refuse(job, refused.errors)
            except (InvalidRequest, StorageError) as error:
                if storage_verdict(error, in_our_store=is_file_id(job.spec.input)) != "fail":
                    raise
                return self._writer.refuse(job, (as_input_error(error, param_of(job)),))
            outcome = self._writer.write(job, page)
            if page.next is None or outcome is not PlanOutcome.PAGE:
                return outcome
            if self._clock() >= ends_s:
                return PlanOutcome.YIELDED
            job = replace(job, plan_cursor=page.next)

    def _objection_to_output(self, job: Job) -> InputError | None:
        """The reason why the output can never be written, as far as its place says before any row has run.

        One that is away now may be back before there is anything to write: the job is planned.
        """
        if job.spec.output is None or job.plan_cursor.page:
            return None
        try:
            check_output(job.spec.output, job.tenant_id, self._locations)
        except (InvalidRequest, OutputTrouble) as error:
            problem = problem_of(job, error)
            if problem.is_permanent:
                return problem.error
            log.warning(
                "output not looked at: %s",
                problem.error.message,
                extra={"action": "output_not_looked_at", "job": job.id},
            )
        return None

    def _pages(self, job: Job) -> Iterator[ShardPage]:
        with self._store.snapshot() as tx:
            catalogue = Catalogue(tx.workers.models(), self._config.announced_models)

        def may_continue() -> bool:
            self._stepped_s[job.id] = self._clock()
            return job.id not in self._stopped and self._may_continue()

        if job.retry_of is not None:
            self._retries.write(job, may_continue)
        job = self._surveyor.at_commit(job)
        if job.face is Face.NATIVE:
            yield from self._surveyor.pages(job, catalogue, may_continue)
            return
        assert job.spec.input is not None, "a bulk job has an input"
        source = self._sources.open(job.spec.input, job.tenant_id)
        line_bytes_max = self._config.survey.line_bytes_max
        limits, page_shards = self._config.file, self._config.survey.limits.page_shards
        yield from plan_file(job, source, catalogue, limits, page_shards, line_bytes_max, may_continue)


def may_plan_beside(job: Job, under_way: Sequence[Job], free: int) -> bool:
    """Whether the job may have one of the `free` threads. Pure.

    At most one job that may have killed a scheduler at a time: a further death is then its own.
    """
    held = sum(other.tenant_id == job.tenant_id for other in under_way)
    is_safe = job.planning_attempts == 0 or all(other.planning_attempts == 0 for other in under_way)
    return is_safe and may_take(1, held=held, free=free)


def _fault(job: Job, error: Exception) -> InputError | None:
    """The reason why an attempt is made again, for the job's owner. None: the service itself stopped it."""
    if isinstance(error, StorageError):
        is_ours = is_file_id(job.spec.input or "") or job.retry_of is not None
        return input_fault(error, param_of(job), in_our_store=is_ours)
    return None if isinstance(error, Interrupted | DatabaseUnavailable) else BROKEN


def _given_up(job: Job, attempts: int) -> InputError:
    message = f"Reading the input ended the service's scheduler {attempts} times. It is not read again."
    return InputError("planning_failed", message, param=param_of(job))
