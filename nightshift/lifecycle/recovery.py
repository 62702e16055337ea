"""What becomes of a shard whose worker is gone: one rule, whoever noticed it.

The scheduler notices by the clock, when a lease has run out; the supervisor of a worker notices at once, when
its child has died. Both ask here. Neither asks the worker: one that can answer would have renewed. Which row
may be to blame is decided in `jobs/dead_letters.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import Counts, InputError, JobKind, JobState, ShardState
from nightshift.jobs.dead_letters import ERROR_CODE, DeadLetter, Judgement, judge, ran_alone
from nightshift.jobs.ids import new_id
from nightshift.lifecycle.transitions import count_redone, end_stopped_online, finish
from nightshift.store import Transaction
from nightshift.store.shards.leases import ExpiredLease

LEASES_PER_WORKER_MAX: Final = 10_000  # a worker holds a few shards and some hundred online requests
ONLINE_ROW: Final = 0  # the one row of an online request
UNEXPLAINED: Final = [cause for cause in ExitCause if cause.is_crash and not cause.is_explained]
LOST_WITH_THE_DEAD: Final = "lost_with_the_dead"  # lost unexplained, until the row they ran was buried
GUILTY: Final = Judgement(charge=True)  # the shard as a whole, and no row of it


class Verdict(StrEnum):
    RETRY = "retry"  # somebody else may have it
    STOP = "stop"  # its job was told to stop: nobody is to have it
    GIVE_UP = "give_up"  # it has been tried often enough, or may be tried only once


@dataclass(frozen=True)
class Recovered:
    """How many shards met which verdict. Those whose term had moved on meanwhile are not counted."""

    retried: int = 0
    stopped: int = 0
    given_up: int = 0

    @classmethod
    def count(cls, verdicts: "Counter[Verdict]") -> "Recovered":
        return cls(verdicts[Verdict.RETRY], verdicts[Verdict.STOP], verdicts[Verdict.GIVE_UP])

    @property
    def shards(self) -> int:
        return self.retried + self.stopped + self.given_up


def verdict(abandoned: ExpiredLease, attempts_max: int, judged: Judgement) -> Verdict:
    """What is to become of an abandoned shard. Pure."""
    if abandoned.stop_reason is not None:
        return Verdict.STOP
    is_dead = bool(judged.dead) and abandoned.kind is JobKind.ONLINE  # it has no other row
    is_worn_out = judged.charge and abandoned.attempts_in_a_row >= attempts_max
    if is_dead or judged.give_up or is_worn_out or not abandoned.retry_on_interrupt:
        return Verdict.GIVE_UP
    return Verdict.RETRY


def recover_lost(
    tx: Transaction,
    abandoned: Sequence[ExpiredLease],
    causes: Mapping[str, ExitCause],
    attempts_max: int,
    now: datetime,
) -> Recovered:
    """Decide about shards that were lost together, and carry it out. `causes` by worker; one of whose end
    nothing is known has let its leases expire. What else such a worker holds says what it was at.
    """
    there = [*abandoned, *tx.leases.beside(abandoned, LEASES_PER_WORKER_MAX)]
    suspects = {one.shard_id: _suspects(tx, one) for one in there}
    alone = Counter(one.worker_id for one in there if _ran_alone(one, suspects[one.shard_id]))
    at_work = {one.worker_id for one in there if _may_have_run(one)}
    verdicts: Counter[Verdict] = Counter()
    for one in abandoned:
        known = suspects[one.shard_id]
        cause = causes.get(one.worker_id, ExitCause.LEASE_EXPIRED)
        was_it = alone[one.worker_id] == 1 and _ran_alone(one, known)
        stood_by = one.worker_id in at_work and not _may_have_run(one)
        if (alone[one.worker_id] and not was_it) or _waited_to_run_alone(one) or stood_by:
            # It had nothing in the engine; or two say that they were alone there, and neither is to pay.
            judged = Judgement(charge=False, isolate=one.is_isolating)
        else:
            elsewhere = _lost_elsewhere(tx, one.shard_id, one.suspects[0]) if was_it else 0
            judged = judge(cause, _crashes_in_a_row(one), _under_way(one), known, one.is_isolating, elsewhere)
        decided = verdict(one, attempts_max, judged)
        verdicts[decided] += recover(tx, one, decided, now, judged=judged, cause=cause, known=known)
    return Recovered.count(verdicts)


def gone_with(
    tx: Transaction, expired: Sequence[ExpiredLease], causes: Mapping[str, ExitCause]
) -> Sequence[ExpiredLease]:
    """What else those workers hold that ran a row alone, and let its lease run out although they had written
    that down. They are gone, and it stood by: found later, nobody would know that any more.
    """
    alone = {one.worker_id for one in expired if _ran_alone(one, _suspects(tx, one))}
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
    judged: Judgement = GUILTY,
    cause: ExitCause = ExitCause.LEASE_EXPIRED,
    known: Mapping[int, int] = {},
) -> bool:
    """Carry a verdict out. False: the term had moved on, and nothing was changed."""
    if decided is Verdict.RETRY:
        changed = tx.leases.requeue(abandoned, charge=judged.charge, isolate=judged.isolate)
    else:
        state = ShardState.STOPPED if decided is Verdict.STOP else ShardState.FAILED
        changed = tx.leases.end(abandoned, state)
    if not changed:
        return False
    if decided is not Verdict.STOP:
        _remember(tx, abandoned, judged, cause, known, now)
    if decided is Verdict.RETRY:
        _ring(tx, abandoned, now)
        count_redone(tx, abandoned.job_id, abandoned.tokens_in_flight)
    elif abandoned.kind is JobKind.ONLINE:  # a bulk job goes on to be assembled with what it has
        _end_online(tx, abandoned, decided, judged, now)
    return True


def release_worker(
    tx: Transaction, worker_id: str, attempts_max: int, now: datetime, cause: ExitCause
) -> Recovered:
    """A worker is known to be dead: nobody waits for its leases to run out."""
    abandoned = tx.leases.of_worker(worker_id, LEASES_PER_WORKER_MAX)
    recovered = recover_lost(tx, abandoned, {worker_id: cause}, attempts_max, now)
    count_lost(tx, [worker_id], cause, now)
    tx.workers.mark(worker_id, WorkerState.STOPPED, now)
    return recovered


def count_lost(tx: Transaction, worker_ids: Sequence[str], cause: ExitCause, now: datetime) -> None:
    """Workers are gone. Each counts once, whoever notices, and only if that was no leaving in order."""
    if cause.is_crash:
        counted = sum(tx.workers.mark_loss_counted(id, now) for id in worker_ids)
        tx.counters.add(crash_counter(cause), counted)


def crash_counter(cause: ExitCause) -> str:
    """Under which name the database counts workers lost for this cause."""
    return f"crashes.{cause}"


def _lost_unexplained(tx: Transaction) -> int:
    """Workers that anybody has lost and nothing explains: no cause of their own, and no row that is dead."""
    counted = tx.counters.values()
    lost = sum(counted.get(crash_counter(cause), 0) for cause in UNEXPLAINED)
    return lost - counted.get(LOST_WITH_THE_DEAD, 0)


def _lost_elsewhere(tx: Transaction, shard_id: str, row: int) -> int:
    """Of them, those since a row was first suspected that did not run it."""
    with_it, before = tx.dead_letters.unexplained(shard_id, row)
    return 0 if before is None else max(0, _lost_unexplained(tx) - before - with_it)


def _suspects(tx: Transaction, abandoned: ExpiredLease) -> Mapping[int, int]:
    """A shard that lost no worker before, as nearly all, costs no look."""
    return tx.dead_letters.suspects(abandoned.shard_id) if abandoned.crash_count else {}


def _crashes_in_a_row(abandoned: ExpiredLease) -> int:
    """Workers lost with it since it made progress, this one not counted: no more than it had attempts."""
    return min(abandoned.crash_count, abandoned.attempts_in_a_row - 1)


def _under_way(abandoned: ExpiredLease) -> Sequence[int]:
    """Rows that were in the engine, as far as is known. An online request that has cost a worker before is
    taken to have been.
    """
    if abandoned.kind is JobKind.ONLINE and abandoned.crash_count:
        return (ONLINE_ROW,)
    return abandoned.suspects


def _may_have_run(abandoned: ExpiredLease) -> bool:
    """Whether some row of it may have been in the engine: of a shard that is not watched nobody knows."""
    return not abandoned.crash_count or bool(_under_way(abandoned))


def _waited_to_run_alone(abandoned: ExpiredLease) -> bool:
    """A suspected online request is written down before anything is done with it."""
    return abandoned.kind is JobKind.ONLINE and abandoned.is_isolating and not abandoned.suspects


def _ran_alone(abandoned: ExpiredLease, known: Mapping[int, int]) -> bool:
    return ran_alone(abandoned.suspects, known, abandoned.is_isolating)


def _remember(
    tx: Transaction,
    abandoned: ExpiredLease,
    judged: Judgement,
    cause: ExitCause,
    known: Mapping[int, int],
    now: datetime,
) -> None:
    if judged.blamed:
        tx.dead_letters.record_crash(
            abandoned.shard_id,
            judged.blamed,
            cause,
            crashes_before=abandoned.crash_count,
            lost_before=_lost_unexplained(tx),
        )
    for row in judged.dead:
        tx.counters.add(LOST_WITH_THE_DEAD, tx.dead_letters.explain(abandoned.shard_id, row))
        tx.dead_letters.insert(
            DeadLetter(
                id=new_id("dlq"),
                tenant_id=abandoned.tenant_id,
                job_id=abandoned.job_id,
                shard_id=abandoned.shard_id,
                row=row,
                cause=cause,
                crashes=known[row] + 1,
                worker_id=abandoned.worker_id,
                died_at=now,
            )
        )
    if judged.dead:
        tx.counters.add("rows_dead", len(judged.dead))


def _ring(tx: Transaction, abandoned: ExpiredLease, now: datetime) -> None:
    online_shard = abandoned.shard_id if abandoned.kind is JobKind.ONLINE else None
    priority = tx.jobs.fetch(abandoned.job_id).priority
    tx.outbox.add(abandoned.kind, priority.rank, now, shard_id=online_shard)


def _end_online(
    tx: Transaction, abandoned: ExpiredLease, decided: Verdict, judged: Judgement, now: datetime
) -> None:
    job = tx.jobs.fetch(abandoned.job_id)
    if decided is Verdict.STOP:
        end_stopped_online(tx, job, now)
        return
    if judged.dead:
        error = InputError(ERROR_CODE, "This request is not run any more: the workers that ran it died.")
    else:
        lost = f"The worker was lost {abandoned.attempts} times while answering."
        error = InputError("interrupted", lost)
    finish(tx, job, JobState.FAILED, now, counts=Counts(1, 0, 1), errors=(error,))
