"""Statements that renew, release and end leases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    case,
    or_,
    select,
    tuple_,
    update,
)

from nightshift.jobs import (
    Fault,
    JobKind,
    ShardState,
    StopReason,
)
from nightshift.jobs.leases import Lease, Term
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row

job = tables.job
shard = tables.shard


@dataclass(frozen=True)
class HeldLease:
    """A renewed lease, and whether its job is stopping or paused."""

    shard_id: str
    term: Term
    stop_reason: StopReason | None = None
    stop_requested_at: datetime | None = None
    is_paused: bool = False
    pauses_in_s: float | None = None  # until its window ends


@dataclass(frozen=True)
class ExpiredLease:
    """A shard whose worker stopped renewing."""

    shard_id: str
    job_id: str
    tenant_id: str
    kind: JobKind
    term: Term
    worker_id: str
    expired_at: datetime  # by the database's clock; in the future where the worker is known to be dead
    attempts: int
    attempts_in_a_row: int  # attempts since a segment was last listed, including the one that listed it
    crash_count: int  # workers lost with it since it was last cleared, this one not counted
    stop_reason: StopReason | None
    retry_on_interrupt: bool
    in_flight: tuple[int, ...] = ()  # rows, as far as they were journalled
    is_isolating: bool = False  # its suspects ran alone
    tokens_in_flight: int = 0  # generated and in no checkpoint, at the last renewal
    shard_no: int = 0  # number in its job


class Leases(Statements):
    def renew(
        self, held: Sequence[Lease], now: datetime, ttl_s: float, in_flight: Mapping[str, int] = {}
    ) -> Sequence[HeldLease]:
        """Extends the held leases; one missing from the answer is lost.

        Only those the worker knows of: a claim whose commit it never saw must expire. `in_flight`: by shard
        id, tokens generated and in no checkpoint.
        """
        if not held:
            return []
        at_risk = {shard_id: tokens for shard_id, tokens in in_flight.items() if tokens}
        told = case(at_risk, value=shard.c.id, else_=0) if at_risk else 0
        kept = self._execute(
            update(shard)
            .where(
                tuple_(shard.c.id, shard.c.term).in_([(lease.shard_id, lease.term) for lease in held]),
                shard.c.state == ShardState.LEASED,
            )
            .values(lease_until=now + timedelta(seconds=ttl_s), tokens_in_flight=told)
            .returning(shard.c.id, shard.c.term, shard.c.job_id)
        ).all()
        orders = self._orders([row.job_id for row in kept], now)
        return [HeldLease(row.id, Term(row.term), **orders.get(row.job_id, {})) for row in kept]

    def hand_back(self, lease: Lease, carry_over_key: str | None = None) -> bool:
        """Returns an unfinished shard to the queue without charging an attempt. False: the lease was lost.

        Without a key the shard keeps its carry-over.
        """
        kept = {} if carry_over_key is None else {"carry_over_key": carry_over_key}
        return self._release(
            lease.shard_id,
            lease.term,
            state=ShardState.QUEUED,
            attempts=shard.c.attempts - 1,
            signalled_at=None,
            **kept,
        )

    def delay(self, lease: Lease, not_before: datetime, fault: Fault | None = None) -> bool:
        """Returns a shard to the queue until `not_before` after an external fault, which is counted; no
        attempt is.
        """
        return self._release(
            lease.shard_id,
            lease.term,
            state=ShardState.QUEUED,
            attempts=shard.c.attempts - 1,
            faults=shard.c.faults + 1,
            fault=None if fault is None else fault.to_json(),
            not_before=not_before,
            signalled_at=None,
        )

    def return_broken(self, lease: Lease, not_before: datetime, fault: Fault | None = None) -> bool:
        """Returns a shard to the queue after an unforeseen error, charging an attempt but no crash."""
        return self._release(
            lease.shard_id,
            lease.term,
            state=ShardState.QUEUED,
            fault=None if fault is None else fault.to_json(),
            not_before=not_before,
            signalled_at=None,
        )

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def expired(self, now: datetime, limit: int) -> Sequence[ExpiredLease]:
        """Expired leases, the longest expired first."""
        return self._abandoned(shard.c.lease_until <= now, limit)

    def of_worker(self, worker_id: str, limit: int) -> Sequence[ExpiredLease]:
        """The leases of a dead worker."""
        return self._abandoned(shard.c.worker_id == worker_id, limit)

    def beside(self, abandoned: Sequence[ExpiredLease], limit: int) -> Sequence[ExpiredLease]:
        """Other leases of these leases' workers, not locked: the workers may be alive and renew them."""
        if not abandoned:
            return []
        workers = {lease.worker_id for lease in abandoned}
        others = shard.c.id.not_in([lease.shard_id for lease in abandoned])
        return self._abandoned(shard.c.worker_id.in_(workers) & others, limit, is_locked=False)

    def of_job(self, job_id: str, limit: int) -> Sequence[ExpiredLease]:
        """The leases of a stopping job that is no longer waited for."""
        return self._abandoned(shard.c.job_id == job_id, limit)

    def requeue(
        self,
        expired: ExpiredLease,
        *,
        counts_attempt: bool = True,
        isolate: bool = False,
        not_before: datetime | None = None,
        fault: Fault | None = None,
    ) -> bool:
        """Returns it to the queue until `not_before`. False: the term has moved on.

        Without `counts_attempt`, the loss counts neither as an attempt nor as a crash. With `isolate`, its
        suspects run alone. `fault`: of the loss; None: what was met before stays.
        """
        counted: dict[str, Any] = (
            {"crash_count": shard.c.crash_count + 1} if counts_attempt else {"attempts": shard.c.attempts - 1}
        )
        if fault is not None:
            counted["fault"] = fault.to_json()
        return self._release(
            expired.shard_id,
            expired.term,
            state=ShardState.QUEUED,
            signalled_at=None,
            is_isolating=isolate,
            not_before=not_before,
            **counted,
        )

    def end(self, expired: ExpiredLease, state: ShardState) -> bool:
        """Ends an abandoned shard as stopped or failed."""
        return self._release(expired.shard_id, expired.term, state=state, fault=None)

    def _abandoned(
        self, condition: ColumnElement[bool], limit: int, *, is_locked: bool = True
    ) -> Sequence[ExpiredLease]:
        leases = (
            select(shard, job.c.stop_reason, job.c.spec)
            .join(job, job.c.id == shard.c.job_id)
            .where(shard.c.state == ShardState.LEASED, condition)
            .order_by(shard.c.lease_until)
            .limit(limit)
        )
        if is_locked:
            # A worker that renews at this moment keeps its shard. SQLite's writers take turns anyway.
            leases = leases.with_for_update(of=shard, skip_locked=True)
        return self._all(leases, _to_expired)

    def _orders(self, job_ids: Sequence[str], now: datetime) -> dict[str, dict[str, Any]]:
        """The orders to stop or to pause, by job, as fields of HeldLease. A window that has ended is an order
        before the scheduler has recorded it.
        """
        rows = self._execute(
            select(
                job.c.id, job.c.stop_reason, job.c.stop_requested_at, job.c.paused_at, job.c.window_turns_at
            ).where(
                job.c.id.in_(set(job_ids)),
                or_(
                    job.c.stop_reason.is_not(None),
                    job.c.paused_at.is_not(None),
                    job.c.window_turns_at.is_not(None),
                ),
            )
        )
        return {row.id: _order(row, now) for row in rows}

    def _release(self, shard_id: str, term: Term, **values: Any) -> bool:
        return self._changes_one(
            update(shard)
            .where(shard.c.id == shard_id, shard.c.term == term, shard.c.state == ShardState.LEASED)
            .values(worker_id=None, lease_until=None, suspects=None, tokens_in_flight=0, **values)
        )


def _order(row: Any, now: datetime) -> dict[str, Any]:
    left_s = None if row.window_turns_at is None else (row.window_turns_at - now).total_seconds()
    return {
        "stop_reason": StopReason(row.stop_reason) if row.stop_reason else None,
        "stop_requested_at": row.stop_requested_at,
        "is_paused": row.paused_at is not None or (left_s is not None and left_s <= 0),
        "pauses_in_s": left_s,
    }


def _to_expired(row: Row[Any]) -> ExpiredLease:
    return from_row(
        ExpiredLease,
        row,
        shard_id=row.id,
        kind=JobKind(row.kind),
        term=Term(row.term),
        expired_at=row.lease_until,
        attempts_in_a_row=row.attempts - row.attempts_before,
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        retry_on_interrupt=row.spec.get("retry_on_interrupt", True),
        in_flight=tuple(row.suspects or ()),
    )
