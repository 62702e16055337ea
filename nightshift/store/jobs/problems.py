"""Statements about what keeps jobs from going on: the faults that were met, and what is recorded of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, or_, select, text, update

from nightshift.jobs import Fault, InputError, Job, JobKind, JobProblem, ShardState
from nightshift.jobs.part import PartProblem
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.jobs.jobs import ACTIVE_STATES, RUNNABLE_STATES
from nightshift.store.shards.parts import WITH_PROBLEM, Parts
from nightshift.store.shards.shards import OPEN_SHARD_STATES

job = tables.job
shard = tables.shard
part = tables.output_part
delivery = tables.delivery
attempt = tables.delivery_attempt

_WITH_FAULT: Final = text(tables.WITH_FAULT)  # the index's own words: with parameters SQLite does not use it


@dataclass(frozen=True)
class Wanted:
    """The demands of a job on a worker that may run it."""

    model: str
    capacity: str
    pool: str | None


@dataclass(frozen=True)
class MetFaults:
    """The last fault in each part of a job's work. None: there was none, or the work has succeeded since."""

    input: Fault | None = None  # as it was planned
    shard: Fault | None = None  # the first shard's; failed shards come first
    part: Fault | None = None  # its output's
    manifest: Fault | None = None  # or of the files of a batch


@dataclass(frozen=True)
class FailedDelivery:
    """A webhook of a job that was not taken at its last attempt, and is sent again."""

    event_type: str
    fault: Fault  # its message is the attempt's


class Problems(Statements):
    def record(self, known: Job, problem: JobProblem | None) -> bool:
        """Records another problem than the job's, or that there is none. False: it was recorded by another
        process, or the job is over.
        """
        told = None if problem is None else Fault(error=problem.error, met_at=problem.since).to_json()
        changed = self._execute(
            update(job)
            .where(
                job.c.id == known.id,
                job.c.state.in_(ACTIVE_STATES),
                job.c.problem_changes == known.problem_changes,
            )
            .values(current_problem=told, problem_changes=job.c.problem_changes + 1)
        )
        return changed.rowcount == 1

    def jobs(self, limit: int, *, after: str = "") -> Sequence[str]:
        """Ids of unfinished bulk jobs that have met a fault or have a recorded problem, in order."""
        wanted = _with_faults().where(job.c.id > after).order_by(job.c.id).limit(limit)
        return list(self._execute(wanted).scalars())

    def among(self, job_ids: Collection[str]) -> set[str]:
        """The jobs among these that `jobs` would name."""
        return set(self._execute(_with_faults().where(job.c.id.in_(job_ids))).scalars())

    def met(self, job_id: str) -> MetFaults:
        """The faults of a job that still matter: planning's until it is planned, shards' until they end."""
        row = self._execute(
            select(job.c.input_fault, job.c.output_problem, job.c.planned_at, job.c.stop_reason).where(
                job.c.id == job_id
            )
        ).one()
        is_unplanned = row.planned_at is None and row.stop_reason is None
        of_part = Parts(self._connection).problem(job_id)
        return MetFaults(
            input=Fault.from_json(row.input_fault) if row.input_fault and is_unplanned else None,
            shard=self._of_shards(job_id),
            part=None
            if of_part is None
            else replace(_of(of_part.problem), next_attempt_at=of_part.next_attempt_at),
            manifest=_of(PartProblem.from_json(row.output_problem)) if row.output_problem else None,
        )

    def _of_shards(self, job_id: str) -> Fault | None:
        row = self._execute(
            select(shard.c.fault, shard.c.not_before, shard.c.state)
            .where(
                shard.c.job_id == job_id,
                _WITH_FAULT,
                shard.c.state.in_((*OPEN_SHARD_STATES, ShardState.FAILED)),
            )
            .order_by((shard.c.state == ShardState.FAILED).desc(), shard.c.shard_no)
            .limit(1)
        ).one_or_none()
        if row is None:
            return None
        next_at = row.not_before if row.state == ShardState.QUEUED else None
        is_permanent = row.state == ShardState.FAILED
        return replace(Fault.from_json(row.fault), next_attempt_at=next_at, is_permanent=is_permanent)

    def wanted(self) -> Sequence[Wanted]:
        """The demands of bulk jobs with claimable shards, each once."""
        demands = select(job.c.model, job.c.capacity, job.c.pool).where(*_WAITING).distinct()
        return [Wanted(row.model, row.capacity, row.pool) for row in self._execute(demands)]

    def waiting(self, for_: Wanted, limit: int) -> Sequence[str]:
        """Ids of bulk jobs with claimable shards that ask for just this and have no recorded problem."""
        asks = (
            job.c.model == for_.model,
            job.c.capacity == for_.capacity,
            job.c.pool.is_(None) if for_.pool is None else job.c.pool == for_.pool,
        )
        wanted = select(job.c.id).where(*_WAITING, *asks, job.c.current_problem.is_(None)).order_by(job.c.id)
        return list(self._execute(wanted.limit(limit)).scalars())

    def is_waiting(self, job_id: str) -> bool:
        """Whether it is a bulk job with claimable shards."""
        wanted = select(job.c.id).where(*_WAITING, job.c.id == job_id)
        return self._execute(wanted).one_or_none() is not None

    def undelivered(self, job_ids: Collection[str]) -> dict[str, FailedDelivery]:
        """Webhooks that were not taken and are sent again, by job: the one whose turn is first."""
        rows = self._execute(
            select(
                delivery.c.job_id,
                delivery.c.event_type,
                delivery.c.next_at,
                attempt.c.started_at,
                attempt.c.status_code,
                attempt.c.error,
            )
            .join(
                attempt,
                and_(attempt.c.delivery_id == delivery.c.id, attempt.c.attempt_no == delivery.c.attempts),
            )
            .where(delivery.c.job_id.in_(job_ids), delivery.c.state == DeliveryState.PENDING)
            .order_by(delivery.c.next_at.desc())
        )
        return {row.job_id: _failed(row) for row in rows}


def _of(problem: PartProblem) -> Fault:
    return Fault(error=problem.error, is_permanent=problem.is_permanent)


def _failed(row: Any) -> FailedDelivery:
    said = f"it answered {row.status_code}" if row.status_code is not None else row.error
    error = InputError("webhook_not_delivered", str(said or "it gave no answer"), param="webhook")
    return FailedDelivery(
        row.event_type, Fault(error=error, met_at=row.started_at, next_attempt_at=row.next_at)
    )


def _with_faults() -> Select[Any]:
    of_shard = select(shard.c.id).where(shard.c.job_id == job.c.id, _WITH_FAULT)
    of_part = select(part.c.id).where(part.c.job_id == job.c.id, WITH_PROBLEM)
    return select(job.c.id).where(
        job.c.state.in_(ACTIVE_STATES),
        job.c.kind == JobKind.BULK,
        or_(
            job.c.input_fault.is_not(None),
            job.c.output_problem.is_not(None),
            job.c.current_problem.is_not(None),
            of_shard.exists(),
            of_part.exists(),
        ),
    )


_WAITING: Final[tuple[ColumnElement[bool], ...]] = (
    job.c.kind == JobKind.BULK,
    job.c.state.in_(RUNNABLE_STATES),
    job.c.stop_reason.is_(None),
    job.c.paused_at.is_(None),
    job.c.model.is_not(None),
    select(shard.c.id).where(shard.c.job_id == job.c.id, shard.c.state == ShardState.QUEUED).exists(),
)
