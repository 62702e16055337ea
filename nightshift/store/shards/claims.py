"""Statements that claim shards.

The UPDATE that takes a shard raises its term, so a shard's terms never repeat. On PostgreSQL, claimers skip
each other's rows (SKIP LOCKED); on SQLite, writers take turns.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Row,
    Subquery,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from nightshift.fleet.workers import Machine
from nightshift.jobs import (
    BulkClaim,
    CrashHistory,
    Interruption,
    Job,
    JobKind,
    JobState,
    JsonObject,
    OnlineClaim,
    ShardState,
)
from nightshift.jobs.leases import Lease, Term
from nightshift.jobs.priorities import ROOM_FOR_ALL, SMALL_JOB_ROWS, PriorityConfig, Room
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.store.jobs.jobs import RUNNABLE_STATES, Jobs, to_job
from nightshift.store.shards.dead_letters import DeadLetters
from nightshift.store.shards.shards import to_shard

job = tables.job
shard = tables.shard
request = tables.request

ANY_CAPACITY = "any"  # capacity of a job that runs on any machine
JOBS_LOOKED_AT_MAX = 8  # another claimer may have just taken the first ones' last shard


@dataclass(frozen=True)
class WaitingWork:
    """Work of one model that could be claimed."""

    model: str
    rank: int
    """The best priority class of the work."""
    is_due: bool
    """A client waits for it, its deadline is near, or it has waited long."""
    waits_s: float
    """The oldest of it."""


class Claims(Statements):
    def bulk(
        self,
        worker_id: str,
        models: Sequence[str],
        now: datetime,
        ttl_s: float,
        priorities: PriorityConfig = PriorityConfig(),
        *,
        machine: Machine = Machine(),
        room: Room = ROOM_FOR_ALL,
    ) -> BulkClaim | None:
        """Leases the best bulk shard for these models on such a machine, ordered as in
        `nightshift/jobs/priorities.py`, of those that `room` does not leave out.
        """
        for candidate in self._best_jobs(models, now, priorities, machine, room):
            if candidate.state is JobState.QUEUED:  # the claim will change it
                Jobs(self._connection).lock(candidate.id)
            claimed = self._take_next_shard(candidate, worker_id, now, ttl_s)
            if claimed is not None:
                return BulkClaim(
                    _to_lease(claimed),
                    to_shard(claimed),
                    candidate,
                    self._crash_history(claimed),
                    begins_job=self._start(candidate, now),
                    took_over=_took_over(claimed),
                )
        return None

    def online(
        self,
        shard_ids: Sequence[str],
        worker_id: str,
        models: Sequence[str],
        now: datetime,
        ttl_s: float,
        *,
        machine: Machine = Machine(),
        full_tenants: Collection[str] = (),
    ) -> Sequence[OnlineClaim]:
        """Leases those of these online shards that are still queued, and of no full tenant; at most 64 per
        call keep it short.
        """
        jobs = self._lock_jobs_of(shard_ids)
        if not jobs:
            return []
        taken = self._execute(
            _TAKE_ONLINE,
            {
                "shards": shard_ids,
                "jobs": list(jobs),
                "served": models,
                "capacities": _capacities(machine),
                "full_tenants": list(full_tenants),
                "moment": now,
                **_taker(worker_id, now, ttl_s),
            },
        ).all()
        for row in taken:
            self._start(jobs[row.job_id][0], now)
        return [_online_claim(row, *jobs[row.job_id], now) for row in taken]

    def next_online(
        self,
        models: Sequence[str],
        now: datetime,
        limit: int,
        machine: Machine = Machine(),
        full_tenants: Collection[str] = (),
    ) -> Sequence[str]:
        """The best claimable online shards (`jobs/priorities.py`) of tenants that are not full, when more
        have rung than there are slots, or Redis is silent.
        """
        of_model, of_tenant = (
            self._in_flight(JobKind.ONLINE, *by)
            for by in ((shard.c.tenant_id, shard.c.model), (shard.c.tenant_id,))
        )
        is_best = (job.c.priority_rank, shard.c.enqueued_at, shard.c.id)
        by_model = (
            select(
                shard.c.id,
                shard.c.tenant_id,
                job.c.priority_rank,
                shard.c.enqueued_at,
                # The tenant's shards of this model in flight once this one is claimed.
                (
                    func.row_number().over(partition_by=(shard.c.tenant_id, shard.c.model), order_by=is_best)
                    + func.coalesce(of_model.c.shards, 0)
                ).label("turn_of_model"),
            )
            .join(job, job.c.id == shard.c.job_id)
            .outerjoin(
                of_model,
                and_(of_model.c.tenant_id == shard.c.tenant_id, of_model.c.model == shard.c.model),
            )
            .where(
                shard.c.kind == JobKind.ONLINE,
                shard.c.model.in_(models),
                shard.c.capacity.in_(_capacities(machine)),
                shard.c.tenant_id.not_in(full_tenants),
                *_claimable(now),
            )
            .subquery()
        )
        is_next = (by_model.c.priority_rank, by_model.c.turn_of_model, by_model.c.enqueued_at, by_model.c.id)
        waiting = (
            select(
                by_model.c.id,
                by_model.c.priority_rank,
                by_model.c.enqueued_at,
                # The tenant's shards in flight once this one is claimed.
                (
                    func.row_number().over(partition_by=by_model.c.tenant_id, order_by=is_next)
                    + func.coalesce(of_tenant.c.shards, 0)
                ).label("turn"),
            )
            .outerjoin(of_tenant, of_tenant.c.tenant_id == by_model.c.tenant_id)
            .subquery()
        )
        rows = self._execute(
            select(waiting.c.id)
            .order_by(waiting.c.priority_rank, waiting.c.turn, waiting.c.enqueued_at, waiting.c.id)
            .limit(limit)
        )
        return list(rows.scalars())

    def waiting(
        self,
        models: Sequence[str],
        now: datetime,
        priorities: PriorityConfig = PriorityConfig(),
        *,
        machine: Machine = Machine(),
    ) -> Sequence[WaitingWork]:
        """Work of these models that could be claimed on such a machine: one entry a model and kind of job."""
        if not models:
            return []
        urgent = case((_is_urgent(now, priorities.deadline_ramp, priorities.ageing), 1), else_=0)
        bulk = (
            select(job.c.model, func.min(job.c.priority_rank), func.max(urgent), func.min(job.c.created_at))
            .where(*self._runnable(models, now, machine))
            .group_by(job.c.model)
        )
        online = (
            select(
                shard.c.model,
                func.min(job.c.priority_rank),
                literal(1),  # a client waits for the answer
                func.min(shard.c.enqueued_at),
            )
            .join(job, job.c.id == shard.c.job_id)
            .where(
                shard.c.kind == JobKind.ONLINE,
                shard.c.model.in_(models),
                shard.c.capacity.in_(_capacities(machine)),
                *_claimable(now),
            )
            .group_by(shard.c.model)
        )
        rows = [*self._execute(bulk), *self._execute(online)]
        return [
            WaitingWork(model, rank, bool(is_due), max(0.0, (now - since).total_seconds()))
            for model, rank, is_due, since in rows
        ]

    def _runnable(
        self, models: Sequence[str], now: datetime, machine: Machine
    ) -> tuple[ColumnElement[bool], ...]:
        """Bulk jobs of which a shard could be claimed."""
        return (
            job.c.kind == JobKind.BULK,
            job.c.state.in_(RUNNABLE_STATES),
            job.c.stop_reason.is_(None),
            job.c.paused_at.is_(None),
            in_window(now),
            job.c.model.in_(models),
            job.c.capacity.in_(_capacities(machine)),
            or_(job.c.pool.is_(None), job.c.pool.in_(machine.pools)),
            select(shard.c.id).where(shard.c.job_id == job.c.id, *_claimable(now)).exists(),
        )

    def _best_jobs(
        self,
        models: Sequence[str],
        now: datetime,
        priorities: PriorityConfig,
        machine: Machine,
        room: Room,
    ) -> Sequence[Job]:
        in_flight = self._in_flight(JobKind.BULK)
        of_tenant = func.coalesce(in_flight.c.shards, 0)
        order = _claim_order(now, priorities.deadline_ramp, priorities.ageing, of_tenant)
        # Keys only: to sort jobs, SQLite copies every selected column.
        best = (
            select(job.c.id, *(key.label(f"key_{place}") for place, key in enumerate(order)))
            .outerjoin(in_flight, in_flight.c.tenant_id == job.c.tenant_id)
            .where(*self._runnable(models, now, machine), *_within(room))
            .order_by(*order, job.c.deadline_at, job.c.created_at, job.c.id)
            .limit(JOBS_LOOKED_AT_MAX)
            .subquery()
        )
        _, *keys = best.c
        return self._all(
            select(job)
            .join(best, best.c.id == job.c.id)
            .order_by(*keys, job.c.deadline_at, job.c.created_at, job.c.id),
            to_job,
        )

    def _in_flight(self, kind: JobKind, *by: Column[Any]) -> Subquery:
        """Leased shards per tenant, or by these columns."""
        columns = by or (shard.c.tenant_id,)
        return (
            select(*columns, func.count().label("shards"))
            .where(shard.c.state == ShardState.LEASED, shard.c.kind == kind)
            .group_by(*columns)
            .subquery()
        )

    def _take_next_shard(
        self, candidate: Job, worker_id: str, now: datetime, ttl_s: float
    ) -> Row[Any] | None:
        values = {"of": candidate.id, "moment": now, **_taker(worker_id, now, ttl_s)}
        return self._execute(_TAKE_NEXT, values).one_or_none()

    def _lock_jobs_of(self, shard_ids: Sequence[str]) -> dict[str, tuple[Job, JsonObject]]:
        """The queued online jobs among these, locked, with their bodies."""
        rows = self._execute(_LOCK_JOBS, {"shards": shard_ids})
        return {row.id: (to_job(row), row.body) for row in rows}

    def _crash_history(self, claimed: Row[Any]) -> CrashHistory:
        """Queries only for a shard that lost a worker, which is rare."""
        return DeadLetters(self._connection).crash_history(claimed.id, claimed.crash_count)

    def _start(self, claimed: Job, now: datetime) -> bool:
        """Starts a job with its first claim. False: another claim has started it."""
        if claimed.state is not JobState.QUEUED:
            return False
        return Jobs(self._connection).mark_started(claimed.id, now, claimed.spec.max_runtime_s)


def _claimable(now: datetime | BindParameter[datetime]) -> tuple[ColumnElement[bool], ...]:
    return (
        shard.c.state == ShardState.QUEUED,
        or_(shard.c.not_before.is_(None), shard.c.not_before <= now),
    )


def in_window(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """Whether the window of a job that is not paused has not ended, or it has none."""
    return or_(job.c.window_turns_at.is_(None), job.c.window_turns_at > now)


# Built once: a request waits while SQLAlchemy builds a statement.

_LOCK_JOBS = (
    select(job, request.c.body)
    .join(shard, shard.c.job_id == job.c.id)
    .join(request, request.c.shard_id == shard.c.id)
    .where(shard.c.id.in_(bindparam("shards", expanding=True)), shard.c.state == ShardState.QUEUED)
    .order_by(job.c.id)
    .with_for_update(of=job)
)

_TAKE = update(shard).values(
    state=ShardState.LEASED,
    term=shard.c.term + 1,
    attempts=shard.c.attempts + 1,
    worker_id=bindparam("taker"),
    lease_until=bindparam("until"),
)

_TAKE_ONLINE = _TAKE.where(
    shard.c.id.in_(bindparam("shards", expanding=True)),
    shard.c.job_id.in_(bindparam("jobs", expanding=True)),
    shard.c.kind == JobKind.ONLINE,
    shard.c.model.in_(bindparam("served", expanding=True)),
    shard.c.capacity.in_(bindparam("capacities", expanding=True)),
    shard.c.tenant_id.not_in(bindparam("full_tenants", expanding=True)),
    *_claimable(bindparam("moment")),
).returning(
    shard.c.id,
    shard.c.job_id,
    shard.c.tenant_id,
    shard.c.term,
    shard.c.worker_id,
    shard.c.lease_until,
    shard.c.is_isolating,
)

_TAKE_NEXT = _TAKE.where(
    shard.c.id
    == select(shard.c.id)
    .where(shard.c.job_id == bindparam("of"), *_claimable(bindparam("moment")))
    .order_by(shard.c.shard_no)
    .limit(1)
    .with_for_update(skip_locked=True)  # SQLite, with one writer at a time, omits it
    .scalar_subquery(),
    shard.c.state == ShardState.QUEUED,
    # It may have been paused since it was chosen.
    select(job.c.id)
    .where(job.c.id == bindparam("of"), job.c.paused_at.is_(None), in_window(bindparam("moment")))
    .exists(),
).returning(shard)


def _capacities(machine: Machine) -> Sequence[str]:
    """The capacities of jobs that may run on it."""
    return (ANY_CAPACITY, machine.capacity)


def _taker(worker_id: str, now: datetime, ttl_s: float) -> dict[str, Any]:
    return {"taker": worker_id, "until": now + timedelta(seconds=ttl_s)}


def _within(room: Room) -> Sequence[ColumnElement[bool]]:
    """Conditions that the jobs meet of which it does not leave out all shards."""
    pair = tuple_(job.c.tenant_id, job.c.model)
    conditions: list[ColumnElement[bool]] = []
    if room.full_models:
        conditions.append(job.c.model.not_in(room.full_models))
    if room.full_pairs:
        conditions.append(pair.not_in(room.full_pairs))
    if room.loaded_pairs:
        is_small = func.coalesce(job.c.rows_total, job.c.rows_estimated) <= SMALL_JOB_ROWS
        conditions.append(or_(pair.not_in(room.loaded_pairs), and_(job.c.planned_at.is_not(None), is_small)))
    return conditions


def _is_urgent(now: datetime, deadline_ramp: timedelta, ageing: timedelta) -> ColumnElement[bool]:
    return or_(
        job.c.deadline_at <= now + deadline_ramp, job.c.urgent_at <= now, job.c.created_at <= now - ageing
    )


def _claim_order(
    now: datetime, deadline_ramp: timedelta, ageing: timedelta, in_flight: ColumnElement[int]
) -> tuple[ColumnElement[int], ...]:
    """The order of claimable jobs before deadline and age: `jobs/priorities.py` in SQL."""
    is_lifted = and_(_is_urgent(now, deadline_ramp, ageing), job.c.priority_rank > 0)
    fewest_lifted = func.min(case((is_lifted, in_flight))).over(partition_by=job.c.priority_rank)
    is_in_its_place = in_flight < fewest_lifted
    return (
        case((or_(is_lifted, is_in_its_place), job.c.priority_rank - 1), else_=job.c.priority_rank),
        case((is_in_its_place, fewest_lifted), else_=in_flight),
        in_flight,
    )


def _online_claim(row: Row[Any], job: Job, body: JsonObject, now: datetime) -> OnlineClaim:
    waited_s = max(0.0, (now - job.created_at).total_seconds())
    return OnlineClaim(_to_lease(row), job, body, row.is_isolating, waited_s)


def _took_over(row: Row[Any]) -> Interruption | None:
    """The interruption that ended the lease before, if one did. An entry of an earlier lease stays
    where a later one
    ended otherwise.
    """
    last = None if row.interruption is None else Interruption(**row.interruption)
    return last if last is not None and last.term == row.term - 1 else None


def _to_lease(row: Row[Any]) -> Lease:
    return from_row(Lease, row, shard_id=row.id, term=Term(row.term), expires_at=row.lease_until)
