"""Statements about jobs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Row,
    Text,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from nightshift.errors import OutputInUse
from nightshift.fleet.costs import WorkerTime
from nightshift.jobs import (
    Counts,
    Face,
    Fault,
    InputError,
    Job,
    JobKind,
    JobProblem,
    JobSpec,
    JobState,
    JsonObject,
    NewJob,
    Outlook,
    StopReason,
    Usage,
    sources,
)
from nightshift.jobs.ids import SUFFIX_LENGTH
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import PartProblem, PartUpload
from nightshift.jobs.planning import PlanCursor
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position
from nightshift.store.databases.planner_hints import unindexed
from nightshift.store.jobs.events import FIRST_SEQ
from nightshift.store.jobs.listing import JOB_WITHOUT_TEMPLATE, JobFilters, listing
from nightshift.store.shards.shards import OPEN_SHARD_STATES

job = tables.job
shard = tables.shard
leadership = tables.leadership

ACTIVE_STATES = tuple(state for state in JobState if not state.is_terminal)
RUNNABLE_STATES = (JobState.QUEUED, JobState.RUNNING)

UNPLANNED = (  # not to its end: rows of its first pages may run
    job.c.state.in_(RUNNABLE_STATES),
    job.c.kind == JobKind.BULK,
    job.c.planned_at.is_(None),
    job.c.stop_reason.is_(None),
)
_OPEN_SHARD = select(shard.c.id).where(shard.c.job_id == job.c.id, shard.c.state.in_(OPEN_SHARD_STATES))
TO_FINALIZE = (  # all shards have ended, and there will be no more
    job.c.kind == JobKind.BULK,
    job.c.state.in_(RUNNABLE_STATES),
    or_(job.c.planned_at.is_not(None), job.c.stop_reason.is_not(None)),
    ~_OPEN_SHARD.exists(),
)
STOPPING = (job.c.state.in_(RUNNABLE_STATES), job.c.stop_reason.is_not(None))
MAY_EXPIRE = (job.c.state.in_(RUNNABLE_STATES), job.c.stop_reason.is_(None))
PAST_LIMITS = (  # perhaps: NULL, so never exceeded, if unset. Floats are exact up to 2**53
    job.c.kind == JobKind.BULK,
    job.c.state == JobState.RUNNING,
    job.c.stop_reason.is_(None),
    or_(
        job.c.rows_failed
        > job.c.spec["max_error_rate"].as_float() * (job.c.rows_succeeded + job.c.rows_failed),
        job.c.rows_failed > job.c.spec["max_failed_rows"].as_float(),
        job.c.prompt_tokens + job.c.completion_tokens > job.c.spec["max_tokens_total"].as_float(),
    ),
)
_NOT_PAUSED: Final[dict[str, Any]] = {"paused_at": None, "window_turns_at": None}  # nor ever again
_PLANNING_ORDER = (job.c.priority_rank, job.c.created_at, job.c.id)

_PROGRESS_NAMES = (
    "rows_succeeded", "rows_failed",
    "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "stored_bytes",
)  # fmt: skip

# Built once: a request or a worker waits while SQLAlchemy builds a statement.

_INSERT = insert(job)

_LOCK = select(job.c.id).where(job.c.id == bindparam("of")).with_for_update(key_share=True)

_START = (
    update(job)
    .where(job.c.id == bindparam("of"), job.c.state == JobState.QUEUED)
    .values(state=JobState.RUNNING, started_at=bindparam("since"), runtime_deadline_at=bindparam("until"))
)

_ADD_PROGRESS = (
    update(job)
    .where(job.c.id == bindparam("of"))
    .values({name: job.c[name] + bindparam(f"more_{name}") for name in _PROGRESS_NAMES})
    .returning(job.c.tenant_id, job.c.model, job.c.rows_total, job.c.rows_succeeded, job.c.rows_failed)
)


def new_row(new: NewJob, now: datetime) -> dict[str, Any]:
    """A new job as a row, which counts its first event (`events.event_row`)."""
    paused_at, window_turns_at = new.pause_at(now)
    row = vars(new) | {
        "state": JobState.QUEUED,
        "priority_rank": new.priority.rank,
        "spec": new.spec.to_json(),
        "created_at": now,
        "deadline_at": new.deadline_at(now),
        "paused_at": paused_at,
        "window_turns_at": window_turns_at,
        "capacity": new.spec.capacity,
        "pool": new.spec.options.pool,
        "event_seq": FIRST_SEQ,
        "name": new.spec.name,
    }
    del row["body_bytes"]  # a part of `stored_bytes`
    return row


@dataclass(frozen=True)
class Backlog:
    """Jobs of one kind and state over all tenants."""

    kind: JobKind
    state: JobState
    jobs: int


@dataclass(frozen=True)
class Progress:
    """A job's counts after results were added."""

    tenant_id: str
    model: str | None
    counts: Counts


class Jobs(Statements):
    # -- creation and look-up, on behalf of a tenant ---------------------------------------------------

    def insert(self, new: NewJob, now: datetime, *, output_place: str | None = None) -> Job:
        """Records an accepted bulk job, not planned yet. Raises OutputInUse while another writes there."""
        try:
            with self._connection.begin_nested():
                self._execute(_INSERT, new_row(new, now) | {"output_place": output_place})
        except IntegrityError as error:
            if output_place is not None:
                self.check_output(new.tenant_id, output_place)
            raise error
        return new.accepted(now)

    def check_output(self, tenant_id: str, output_place: str) -> None:
        """Raises OutputInUse while a job writes there; it is named only to its own tenant."""
        other = self._execute(
            select(job.c.id, job.c.tenant_id).where(
                job.c.output_place == output_place, job.c.state.in_(ACTIVE_STATES)
            )
        ).one_or_none()
        if other is None:
            return
        if other.tenant_id != tenant_id:
            raise OutputInUse(param="output")
        message = f"{other.id} writes to this output. Wait for its end, cancel it, or name another folder."
        raise OutputInUse(message, param="output")

    def get(self, tenant_id: str, job_id: str) -> Job | None:
        return self._one(
            select(job).where(job.c.id == job_id, job.c.tenant_id == tenant_id, job.c.deleted_at.is_(None)),
            to_job,
        )

    def list(
        self,
        tenant_id: str,
        *,
        limit: int,
        after: Job | None = None,
        filters: JobFilters = JobFilters(),
    ) -> Sequence[Job]:
        """Newest first, in a total order, without templates. `after`: the last job of the previous page."""
        return self._all(listing(tenant_id, limit, after, filters), to_job)

    def find_repeat(self, tenant_id: str, fingerprint: str, created_since: datetime) -> Job | None:
        """The newest job with this fingerprint since then, for a client's retry."""
        return self._one(
            select(job)
            .where(
                job.c.tenant_id == tenant_id,
                job.c.fingerprint == fingerprint,
                job.c.created_at >= created_since,
                job.c.deleted_at.is_(None),
            )
            .order_by(job.c.created_at.desc())
            .limit(1),
            to_job,
        )

    def runs(self, tenant_id: str, name: str, limit: int) -> Sequence[Job]:
        """The newest runs of a name, newest first, without templates."""
        return self.list(tenant_id, limit=limit, filters=JobFilters(name=name))

    def reading(self, tenant_id: str, file_id: str) -> Job | None:
        """The oldest unfinished job of the tenant that reads this file."""
        return self._one(
            select(job)
            .where(
                job.c.tenant_id == tenant_id,
                job.c.kind == JobKind.BULK,
                job.c.state.in_(ACTIVE_STATES),
                job.c.spec["input"].as_string() == file_id,
            )
            .order_by(job.c.created_at, job.c.id)
            .limit(1),
            to_job,
        )

    def retries(self, tenant_id: str, job_id: str, limit: int) -> Sequence[str]:
        """The ids of the newest retries of the tenant's job."""
        rows = self._execute(
            select(job.c.id)
            .where(job.c.retry_of == job_id, job.c.tenant_id == tenant_id)
            .order_by(job.c.created_at.desc())
            .limit(limit)
        )
        return list(rows.scalars())

    def request_stop(self, tenant_id: str, job_id: str, reason: StopReason, now: datetime) -> bool:
        """Lets this job start no more rows. False: it was stopping, finalizing or over."""
        return self._stop(reason, now, job.c.id == job_id, job.c.tenant_id == tenant_id)

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def fetch(self, job_id: str) -> Job:
        """A job by an id that came from the database."""
        return to_job(self._execute(select(job).where(job.c.id == job_id)).one())

    def webhook_secret(self, job_id: str) -> bytes | None:
        """The job's own webhook secret, encrypted."""
        return self._execute(select(job.c.webhook_secret).where(job.c.id == job_id)).scalar_one_or_none()

    def traceparent(self, job_id: str) -> str | None:
        """The span that submitted it. None: it is not traced, or there is no such job."""
        return self._execute(select(job.c.traceparent).where(job.c.id == job_id)).scalar_one_or_none()

    def to_plan(self, limit: int, after: Job | None = None) -> Sequence[Job]:
        """Bulk jobs that are not planned to their end, without their templates, most urgent first. `after`:
        the last of the previous page.
        """
        order = _PLANNING_ORDER
        wanted = select(*JOB_WITHOUT_TEMPLATE).where(*UNPLANNED)
        if after is not None:
            place = (after.priority.rank, after.created_at, after.id)
            wanted = wanted.where(tuple_(*order) > position(order, place))
        return self._all(wanted.order_by(*order).limit(limit), to_job)

    def first_to_plan(self, limit: int, of_each: int) -> Sequence[Job]:
        """The most urgent `of_each` unplanned bulk jobs of every tenant, without their templates: first each
        tenant's first.
        """
        rank = func.row_number().over(partition_by=job.c.tenant_id, order_by=_PLANNING_ORDER).label("rank")
        ranked = select(job.c.id, rank).where(*UNPLANNED).subquery()
        return self._all(
            select(*JOB_WITHOUT_TEMPLATE)
            .join(ranked, ranked.c.id == job.c.id)
            .where(ranked.c.rank <= of_each)
            .order_by(ranked.c.rank, *_PLANNING_ORDER)
            .limit(limit),
            to_job,
        )

    def still_to_plan(self, job_ids: Sequence[str]) -> set[str]:
        """The jobs among these that are not planned to their end, stopped or over."""
        _, *others = UNPLANNED
        is_runnable = unindexed(job.c.state).in_(RUNNABLE_STATES)  # these few are found by their ids
        wanted = select(job.c.id).where(job.c.id.in_(job_ids), is_runnable, *others)
        return set(self._execute(wanted).scalars())

    def ended_runs(self, runs: Collection[str]) -> set[str]:
        """The given beginnings of job ids whose jobs have all ended. One without jobs is left out."""
        ended = set()
        for run in runs:
            rest = SUFFIX_LENGTH - len(run)
            is_of_run = job.c.id.between(f"job_{run}{'0' * rest}", f"job_{run}{'z' * rest}")
            states = self._execute(select(job.c.state).where(is_of_run)).scalars().all()
            if states and all(JobState(state).is_terminal for state in states):
                ended.add(run)
        return ended

    def output_upload(self, job_id: str) -> PartUpload | None:
        """The upload that was begun last for a job's manifest, if it is still to appear."""
        upload = self._execute(select(job.c.output_upload).where(job.c.id == job_id)).scalar_one()
        return None if upload is None else PartUpload.from_json(upload)

    def begin_output(self, begins: Job, upload: PartUpload, lead: Lead) -> bool:
        """Records what the leader begins of a job's manifest. False: the job's state is another by now, or
        another scheduler leads. So the manifest of a running job never replaces its last one.
        """
        return self._update(
            job.c.id == begins.id,
            job.c.state == begins.state,
            job.c.state.in_(ACTIVE_STATES),
            _is_held(lead),
            output_upload=upload.to_json(),
        )

    def output_problem(self, job_id: str) -> PartProblem | None:
        """The reason why the job's manifest, or its files, could not be written the last time."""
        problem = self._execute(select(job.c.output_problem).where(job.c.id == job_id)).scalar_one()
        return None if problem is None else PartProblem.from_json(problem)

    def record_output_problem(self, job_id: str, problem: PartProblem | None) -> None:
        self._update(
            job.c.id == job_id,
            job.c.state.in_(ACTIVE_STATES),
            output_problem=None if problem is None else problem.to_json(),
        )

    def begin_planning(self, job_id: str, lead: Lead) -> int | None:
        """Counts an attempt to plan, before it starts. Returns how many have no known end, this one included.

        None: the job was planned to its end, stopped or over, or another scheduler leads.
        """
        attempts: int | None = self._execute(
            update(job)
            .where(job.c.id == job_id, *UNPLANNED, _is_held(lead))
            .values(planning_attempts=job.c.planning_attempts + 1)
            .returning(job.c.planning_attempts)
        ).scalar_one_or_none()
        return attempts

    def end_planning(self, job_id: str, fault: Fault | None = None) -> None:
        """Takes back an attempt whose end is known, whatever came of it. `fault`: why it is tried again."""
        attempts = job.c.planning_attempts
        self._update(job.c.id == job_id, attempts > 0, planning_attempts=attempts - 1)
        if fault is not None:
            self.record_input_fault(job_id, fault)

    def record_input_fault(self, job_id: str, fault: Fault) -> None:
        """Records why the input cannot be planned at present, until the next page of it is planned. Nothing
        is recorded of a job that was planned, stopped or over meanwhile.
        """
        self._update(job.c.id == job_id, *UNPLANNED, input_fault=fault.to_json())

    def record_page(
        self,
        job_id: str,
        page: int,
        *,
        model: str | None,
        rows_total: int | None,
        rows_estimated: int | None,
        tokens_queued: int = 0,
        next: PlanCursor | None = None,
        now: datetime,
    ) -> bool:
        """Records that this page of the input is cut into shards, of about so many rows and tokens. `next`:
        where the next one begins; None: it was the last.

        A model of None stays what it is. False: the page was cut, or the job stopped or over.
        """
        values: dict[str, Any] = {
            "plan_page": page + 1,
            "plan_cursor": None if next is None else next.to_json(),
            "tokens_queued": job.c.tokens_queued + tokens_queued,
            "input_fault": None,
        }
        if next is None:
            values |= {"planned_at": now, "rows_total": rows_total}
        else:
            values["planning_attempts"] = 1  # this one, which goes on: it has not died of its input
        if model is not None:
            values["model"] = model
        if rows_estimated is not None:
            values["rows_estimated"] = func.coalesce(job.c.rows_estimated, 0) + rows_estimated
        return self._update(job.c.id == job_id, job.c.plan_page == page, *UNPLANNED, **values)

    def waits_for_page(self, job_id: str, page: int) -> bool:
        """Whether this page is the next to be cut; if so, it stays until this transaction ends."""
        self.lock(job_id)
        wanted = select(job.c.id).where(job.c.id == job_id, job.c.plan_page == page, *UNPLANNED)
        return self._execute(wanted).one_or_none() is not None

    def record_errors(self, job_id: str, errors: Sequence[InputError]) -> None:
        """Records why a job that was told to stop will fail."""
        self._update(job.c.id == job_id, errors=[vars(error) for error in errors])

    def mark_started(self, job_id: str, now: datetime, max_runtime_s: int | None) -> bool:
        """Records the job's first claim. False: not the first."""
        ends = None if max_runtime_s is None else now + timedelta(seconds=max_runtime_s)
        return self._changes_one(_START, {"of": job_id, "since": now, "until": ends})

    def lock(self, job_id: str) -> None:
        """Lock the job's row until this transaction ends.

        A transaction that changes a job and its shard (a first claim, a listed segment, a stop) locks the job
        first: opposite orders would deadlock. SQLite's writers take turns, without locks.
        """
        self._execute(_LOCK, {"of": job_id})

    def add_progress(self, job_id: str, counts: Counts, usage: Usage, stored_bytes: int = 0) -> Progress:
        """Adds the rows of a newly listed segment or recorded result. Returns what the job then has.

        `stored_bytes`: of the segment, or of an online job's answer.
        """
        more = (
            counts.succeeded, counts.failed,
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens,
            stored_bytes,
        )  # fmt: skip
        added = {f"more_{name}": amount for name, amount in zip(_PROGRESS_NAMES, more, strict=True)}
        row = self._execute(_ADD_PROGRESS, {"of": job_id, **added}).one()
        counts = Counts(row.rows_total, row.rows_succeeded, row.rows_failed)
        return Progress(row.tenant_id, row.model, counts)

    def add_tokens_redone(self, job_id: str, tokens: int) -> None:
        """Counts tokens that were lost with a worker or cannot be continued."""
        self._update(job.c.id == job_id, tokens_redone=job.c.tokens_redone + tokens)

    def add_rows_reused(self, job_id: str, rows: int) -> None:
        """Counts rows that have the result of another."""
        self._update(job.c.id == job_id, rows_reused=job.c.rows_reused + rows)

    def add_worker_time(self, job_id: str, time: WorkerTime) -> None:
        """Counts time of workers that shards of the job have taken."""
        self._update(
            job.c.id == job_id,
            worker_ms_spot=job.c.worker_ms_spot + round(time.spot_s * 1000),
            worker_ms_on_demand=job.c.worker_ms_on_demand + round(time.on_demand_s * 1000),
        )

    def overdue(self, now: datetime, limit: int) -> Sequence[Job]:
        """Jobs past their window or run time that were not told to stop."""
        return self._all(
            select(job)
            .where(*MAY_EXPIRE, or_(job.c.deadline_at <= now, job.c.runtime_deadline_at <= now))
            .limit(limit),
            to_job,
        )

    def past_limits(self, limit: int) -> Sequence[Job]:
        """Running jobs that have, perhaps, passed one of their limits, most failed rows first."""
        return self._all(
            select(job).where(*PAST_LIMITS).order_by(job.c.rows_failed.desc()).limit(limit), to_job
        )

    def telling_progress(
        self, event_type: str, tenants: Collection[str], limit: int, after: str = ""
    ) -> Sequence[str]:
        """The ids of running bulk jobs with results, of these tenants or whose webhook names this type of
        event, in order.
        """
        names = cast(job.c.spec["webhook"], Text).contains(f'"{event_type}"', autoescape=True)
        wanted = (
            select(job.c.id)
            .where(
                job.c.kind == JobKind.BULK,
                job.c.state == JobState.RUNNING,
                job.c.rows_succeeded + job.c.rows_failed > 0,
                job.c.id > after,
                or_(job.c.tenant_id.in_(tenants), names),
            )
            .order_by(job.c.id)
            .limit(limit)
        )
        return list(self._execute(wanted).scalars())

    def stop(self, job_id: str, reason: StopReason, now: datetime) -> bool:
        """Stops a job like `request_stop`, for the service itself."""
        return self._stop(reason, now, job.c.id == job_id)

    def stopping(self, limit: int) -> Sequence[Job]:
        """Jobs told to stop that have not ended, the longest waiting first."""
        return self._all(select(job).where(*STOPPING).order_by(job.c.stop_requested_at).limit(limit), to_job)

    def to_finalize(self, limit: int) -> Sequence[Job]:
        """Bulk jobs whose rows will run no more: all shards ended, and there will be no more, as the
        job is planned or stopped.
        """
        return self._all(
            select(job).where(*TO_FINALIZE).order_by(job.c.priority_rank, job.c.created_at).limit(limit),
            to_job,
        )

    def mark_finalizing(self, job_id: str, now: datetime) -> bool:
        return self._update(
            job.c.id == job_id,
            job.c.state.in_(sources(JobState.FINALIZING)),
            state=JobState.FINALIZING,
            finalizing_at=now,
            **_NOT_PAUSED,
        )

    def to_assemble(self, limit: int, after: Job | None = None) -> Sequence[Job]:
        """Jobs to assemble, the longest waiting first. `after`: the last of the previous page."""
        order = (job.c.finalizing_at, job.c.id)
        wanted = select(job).where(job.c.state == JobState.FINALIZING)
        if after is not None:
            wanted = wanted.where(tuple_(*order) > position(order, (after.finalizing_at, after.id)))
        return self._all(wanted.order_by(*order).limit(limit), to_job)

    def finish(
        self,
        job_id: str,
        state: JobState,
        now: datetime,
        *,
        counts: Counts | None = None,
        errors: Sequence[InputError] = (),
        rows_unlisted: int = 0,
        output_file_id: str | None = None,
        error_file_id: str | None = None,
    ) -> bool:
        """Enter a terminal state once, with the final `counts`. False: the job had one."""
        values: dict[str, Any] = {"state": state, "finished_at": now, **_NOT_PAUSED}
        values |= {"current_problem": None, "output_file_id": output_file_id, "error_file_id": error_file_id}
        if counts is not None:
            values |= {f"rows_{name}": count for name, count in vars(counts).items()}
        if errors:
            values["errors"] = [vars(error) for error in errors]
        if rows_unlisted:
            values["rows_unlisted"] = rows_unlisted
        return self._update(job.c.id == job_id, job.c.state.in_(sources(state)), **values)

    def backlog(self) -> Sequence[Backlog]:
        """Unfinished jobs by kind and state."""
        rows = self._execute(
            select(job.c.kind, job.c.state, func.count())
            .where(job.c.state.in_(ACTIVE_STATES))
            .group_by(job.c.kind, job.c.state)
        )
        return [Backlog(JobKind(kind), JobState(state), count) for kind, state, count in rows]

    def _stop(self, reason: StopReason, now: datetime, *guards: ColumnElement[bool]) -> bool:
        return self._update(
            *guards,
            job.c.state.in_(RUNNABLE_STATES),
            job.c.stop_reason.is_(None),
            stop_reason=reason,
            stop_requested_at=now,
            **_NOT_PAUSED,
        )

    def _update(self, *guards: ColumnElement[bool], **values: Any) -> bool:
        return self._changes_one(update(job).where(*guards).values(**values))


def _is_held(lead: Lead) -> ColumnElement[bool]:
    """Whether no other scheduler leads by now."""
    held = select(leadership.c.duty).where(
        leadership.c.duty == lead.duty,
        leadership.c.leader_id == lead.leader_id,
        leadership.c.term == lead.term,
    )
    return held.exists()


def to_job(row: Row[Any]) -> Job:
    return from_row(
        Job,
        row,
        kind=JobKind(row.kind),
        face=Face(row.face),
        state=JobState(row.state),
        priority=PriorityClass(row.priority),
        spec=JobSpec.from_json(row.spec),
        counts=Counts(row.rows_total, row.rows_succeeded, row.rows_failed),
        usage=from_row(Usage, row),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        outlook=Outlook(row.outlook) if row.outlook else None,
        errors=tuple(InputError(**error) for error in row.errors or ()),
        worker_time=WorkerTime(row.worker_ms_spot / 1000, row.worker_ms_on_demand / 1000),
        plan_cursor=PlanCursor.from_json(row.plan_page, row.plan_cursor),
        problem=None if row.current_problem is None else _to_problem(row.current_problem),
    )


def _to_problem(data: JsonObject) -> JobProblem:
    fault = Fault.from_json(data)
    assert fault.met_at is not None, "a recorded problem says since when"
    return JobProblem(fault.error, fault.met_at)
