"""The fate of a shard whose worker is lost: one rule for both that notice.

The scheduler notices by the clock, when a lease has expired; the supervisor of a worker notices at once, when
its child has ended. Neither asks the worker: one that can answer would have renewed. Which row may have
crashed it is decided in `jobs/dead_letters.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import Counts, Fault, InputError, JobKind, JobState, ShardState
from nightshift.jobs.dead_letters import ERROR_CODE, Charge, DeadLetter, LostShard, charges
from nightshift.jobs.ids import new_id
from nightshift.lifecycle.transitions import count_redone, end_stopped_online, finish, record_lost
from nightshift.store import Transaction
from nightshift.store.shards.leases import ExpiredLease

LEASES_PER_WORKER_MAX: Final = 10_000  # a worker holds a few shards and some hundred online requests
LEASES_EXPIRED: Final = "leases_expired"  # the database's counter of them
ONLINE_ROW: Final = 0  # the one row of an online request
WORKER_LOST: Final = InputError(
    "worker_lost", "The worker that ran a part of the input was lost, and another is to go on with it"
)
CHARGE_SHARD: Final = Charge(shard=True)


class Verdict(StrEnum):
    RETRY = "retry"  # another worker may claim it
    STOP = "stop"  # its job was told to stop
    GIVE_UP = "give_up"  # it has been tried often enough, or may be tried only once


@dataclass(frozen=True)
class Recovered:
    """Number of shards that met each verdict. Those whose term had moved on are not counted."""

    retried: int = 0
    stopped: int = 0
    given_up: int = 0

    @classmethod
    def count(cls, verdicts: "Counter[Verdict]") -> "Recovered":
        return cls(verdicts[Verdict.RETRY], verdicts[Verdict.STOP], verdicts[Verdict.GIVE_UP])

    @property
    def shards(self) -> int:
        return self.retried + self.stopped + self.given_up


def verdict(abandoned: ExpiredLease, attempts_max: int, charge: Charge) -> Verdict:
    """Decides the fate of an abandoned shard. Pure."""
    if abandoned.stop_reason is not None:
        return Verdict.STOP
    is_dead = charge.dead_row is not None and abandoned.kind is JobKind.ONLINE  # it has no other row
    is_worn_out = charge.shard and abandoned.attempts_in_a_row >= attempts_max
    if is_dead or charge.give_up or is_worn_out or not abandoned.retry_on_interrupt:
        return Verdict.GIVE_UP
    return Verdict.RETRY


def recover_lost(
    tx: Transaction,
    abandoned: Sequence[ExpiredLease],
    causes: Mapping[str, ExitCause],
    attempts_max: int,
    now: datetime,
) -> Recovered:
    """Decides about shards that were lost together, and carries it out. `causes` by worker id; one without a
    cause has let its leases expire.
    """
    verdicts: Counter[Verdict] = Counter()
    beside = tx.leases.beside(abandoned, LEASES_PER_WORKER_MAX)
    for worker_id in dict.fromkeys(one.worker_id for one in abandoned):
        cause = causes.get(worker_id, ExitCause.LEASE_EXPIRED)
        its = [one for one in abandoned if one.worker_id == worker_id]
        lost = [
            _lost_shard(tx, one) for one in (*its, *(one for one in beside if one.worker_id == worker_id))
        ]
        for one, was, charge in zip(its, lost, charges(cause, lost), strict=False):  # the other leases stay
            decided = verdict(one, attempts_max, charge)
            known = was.suspects
            verdicts[decided] += recover(tx, one, decided, now, charge=charge, cause=cause, known=known)
    return Recovered.count(verdicts)


def gone_with(
    tx: Transaction, expired: Sequence[ExpiredLease], causes: Mapping[str, ExitCause]
) -> Sequence[ExpiredLease]:
    """The other leases of workers that let the lease of a row running alone expire: to be recovered with it,
    since only now it is known that they had nothing in the engine.
    """
    alone = {one.worker_id for one in expired if _lost_shard(tx, one).ran_alone}
    known = {one.shard_id for one in expired}
    return [
        one
        for worker_id in sorted(alone)
        if causes[worker_id].is_crash
        for one in tx.leases.of_worker(worker_id, LEASES_PER_WORKER_MAX)
        if one.shard_id not in known
    ]


def recover(
    tx: Transaction,
    abandoned: ExpiredLease,
    decided: Verdict,
    now: datetime,
    *,
    charge: Charge = CHARGE_SHARD,
    cause: ExitCause = ExitCause.LEASE_EXPIRED,
    known: Mapping[int, int] = {},
) -> bool:
    """Carry a verdict out. `known`: crashes of its suspected rows before. False: the term had moved on."""
    if decided is Verdict.RETRY:
        fault = Fault(error=WORKER_LOST, met_at=now) if cause.is_crash else None
        changed = tx.leases.requeue(
            abandoned, counts_attempt=charge.shard, isolate=charge.isolate, fault=fault
        )
    else:
        state = ShardState.STOPPED if decided is Verdict.STOP else ShardState.FAILED
        changed = tx.leases.end(abandoned, state)
    if not changed:
        return False
    if decided is not Verdict.STOP and abandoned.kind is JobKind.BULK:
        record_lost(tx, abandoned, cause, now)
    if decided is not Verdict.STOP:
        _record_crashes(tx, abandoned, charge, cause, known, now)
    if decided is Verdict.RETRY:
        _ring(tx, abandoned, now)
        count_redone(tx, abandoned.job_id, abandoned.tokens_in_flight)
    elif abandoned.kind is JobKind.ONLINE:  # a bulk job goes on to be assembled with what it has
        _end_online(tx, abandoned, decided, charge, now)
    return True


def release_worker(
    tx: Transaction, worker_id: str, attempts_max: int, now: datetime, cause: ExitCause
) -> Recovered:
    """Recovers what a worker held whose process has ended, without waiting for its leases to expire."""
    abandoned = tx.leases.of_worker(worker_id, LEASES_PER_WORKER_MAX)
    recovered = recover_lost(tx, abandoned, {worker_id: cause}, attempts_max, now)
    count_lost(tx, [worker_id], cause, now)
    tx.workers.mark(worker_id, WorkerState.STOPPED, now)
    return recovered


def count_lost(tx: Transaction, worker_ids: Sequence[str], cause: ExitCause, now: datetime) -> None:
    """Counts each lost worker once, however many notice. An exit in order is no loss."""
    if cause.is_crash:
        counted = sum(tx.workers.mark_loss_counted(id, now) for id in worker_ids)
        tx.counters.add(crash_counter(cause), counted)


def crash_counter(cause: ExitCause) -> str:
    """Name under which the database counts workers lost for this cause."""
    return f"crashes.{cause}"


def _lost_shard(tx: Transaction, abandoned: ExpiredLease) -> LostShard:
    crashes, is_online = abandoned.crash_count, abandoned.kind is JobKind.ONLINE
    in_flight = abandoned.in_flight
    if is_online and crashes and not abandoned.is_isolating:
        in_flight = (ONLINE_ROW,)  # it is journalled only when it runs alone
    # Nearly all shards have lost no worker before, and cost no look.
    suspects = tx.dead_letters.suspects(abandoned.shard_id) if crashes else {}
    return LostShard(
        crashes,
        in_flight,
        suspects,
        abandoned.is_isolating,
        is_waiting=is_online and abandoned.is_isolating and not in_flight,
        crashes_in_a_row=min(crashes, abandoned.attempts_in_a_row - 1),
    )


def _record_crashes(
    tx: Transaction,
    abandoned: ExpiredLease,
    charge: Charge,
    cause: ExitCause,
    known: Mapping[int, int],
    now: datetime,
) -> None:
    if charge.rows:
        tx.dead_letters.record_crash(
            abandoned.shard_id, charge.rows, cause, crashes_before=abandoned.crash_count
        )
    if charge.dead_row is None:
        return
    tx.dead_letters.insert(
        DeadLetter(
            id=new_id("dlq"),
            tenant_id=abandoned.tenant_id,
            job_id=abandoned.job_id,
            shard_id=abandoned.shard_id,
            row=charge.dead_row,
            cause=cause,
            crashes=known[charge.dead_row] + 1,
            worker_id=abandoned.worker_id,
            died_at=now,
        )
    )
    tx.counters.add("rows_dead", 1)


def _ring(tx: Transaction, abandoned: ExpiredLease, now: datetime) -> None:
    online_shard = abandoned.shard_id if abandoned.kind is JobKind.ONLINE else None
    priority = tx.jobs.fetch(abandoned.job_id).priority
    tx.outbox.add(abandoned.kind, priority.rank, now, shard_id=online_shard)


def _end_online(
    tx: Transaction, abandoned: ExpiredLease, decided: Verdict, charge: Charge, now: datetime
) -> None:
    job = tx.jobs.fetch(abandoned.job_id)
    if decided is Verdict.STOP:
        end_stopped_online(tx, job, now)
        return
    if charge.dead_row is not None:
        error = InputError(ERROR_CODE, "This request is not run any more: the workers that ran it died.")
    else:
        lost = f"The worker was lost {abandoned.attempts} times while answering."
        error = InputError("interrupted", lost)
    finish(tx, job, JobState.FAILED, now, counts=Counts(1, 0, 1), errors=(error,))
