"""Every change of a job's state, shared by the API, the scheduler and the workers.

Each function is one change in the caller's open transaction. A shard that changes hands is an event: a person
asks for these after a night on spot machines. A claim in order is none: a job may have a hundred thousand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.bulk.results.destinations import place_of
from nightshift.fleet.costs import NO_TIME, WorkerTime
from nightshift.fleet.workers import Machine
from nightshift.jobs import (
    Answer,
    BulkClaim,
    Counts,
    InputError,
    Interruption,
    Job,
    JobKind,
    JobState,
    JsonObject,
    NewJob,
    NewShard,
    OnlineClaim,
    RecordedAnswer,
    Segment,
    StopReason,
)
from nightshift.jobs.leases import FIRST_TERM, Lease
from nightshift.jobs.planning import PlanCursor
from nightshift.jobs.priorities import ROOM_FOR_ALL, Room
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.schedules.ends import job_ended
from nightshift.lifecycle.webhooks.fan_out import owe, owe_run_event
from nightshift.outbound.webhook_events import MISSED, PASSING, RUNNING, event_type
from nightshift.store import Transaction
from nightshift.store.shards.leases import ExpiredLease
from nightshift.store.shards.shards import PreparedShards
from nightshift.tenants.holdings import Holding, held_by
from nightshift.tenants.usage import usage_day

BULK_RINGS_MAX: Final = 64  # per planned job: they wake the workers, which then claim without rings

# A job that was asked to stop and yet ended otherwise was asked too late.
CANCELLED_IN_TIME: Final = (JobState.RUNNING, JobState.QUEUED, JobState.FINALIZING, JobState.CANCELLED)


@dataclass(frozen=True)
class Submitted:
    """An accepted job, and the rings to send after the commit."""

    job: Job
    shard_id: str | None  # an online job's
    rings: tuple[Ring, ...]


def submit_bulk(tx: Transaction, new: NewJob, now: datetime) -> Submitted:
    """Accepts a bulk job; the scheduler reads its input next. Raises OutputInUse."""
    job = tx.jobs.insert(new, now, output_place=place_of(new.spec))
    tx.events.begin(job.id, f"job.{job.state}", _state_data(job, job.state), now)
    if job.resumes_at is not None:
        append_paused(tx, job, now)
    tx.holdings.add(job.tenant_id, held_by(job) + Holding(stored_bytes=new.stored_bytes))
    return Submitted(job, None, ())


def submit_online(tx: Transaction, new: NewJob, body: JsonObject, now: datetime) -> Submitted:
    """Accepts an online request, claimable at once."""
    assert new.model is not None, "an online request names its model"
    count_online(tx, new, now)
    return insert_online(tx, [(new, body)], now)[0]


def count_online(tx: Transaction, new: NewJob, now: datetime) -> None:
    """Counts an online request, which `insert_online` records."""
    tx.holdings.add(new.tenant_id, held_by(new.accepted(now)) + Holding(stored_bytes=new.stored_bytes))


def insert_online(
    tx: Transaction, requests: Sequence[tuple[NewJob, JsonObject]], now: datetime
) -> Sequence[Submitted]:
    """Records counted requests and their bodies, claimable at once."""
    jobs = [new.accepted(now) for new, _ in requests]
    events = [(f"job.{job.state}", _state_data(job, job.state)) for job in jobs]
    rings = tx.online.insert(requests, events, now)
    return [Submitted(job, ring.shard_id, (ring,)) for job, ring in zip(jobs, rings, strict=True)]


def plan(
    tx: Transaction,
    job: Job,
    model: str | None,
    shards: Sequence[NewShard],
    now: datetime,
    *,
    rows_total: int | None = None,
    rows_estimated: int | None = None,
    tokens_estimated: int = 0,
    next: PlanCursor | None = None,
    prepared: PreparedShards | None = None,
) -> tuple[Ring, ...] | None:
    """Records the page of a bulk job's shards that begins at the job's cursor, claimable from now on. None:
    too late.

    `rows_total`: of the whole input, with its last page. `rows_estimated`: of the page; None: the total says
    it. `next`: where the next page begins; None: the job is planned. `model`: None as long as there are no
    shards. `prepared`: the shards, where they were made into rows before the transaction. Rings where workers
    may have run out of the job's shards.
    """
    if not tx.jobs.record_page(
        job.id,
        job.plan_cursor.page,
        model=model,
        rows_total=rows_total,
        rows_estimated=rows_estimated,
        tokens_queued=tokens_estimated,
        next=next,
        now=now,
    ):
        return None
    rows = rows_estimated if rows_estimated is not None else rows_total or 0
    tx.holdings.add(job.tenant_id, Holding(bulk_rows=rows, queued_tokens=tokens_estimated))
    rings = 0
    if shards:
        assert model is not None, "the model is known before the first shard"
        rings = 0 if tx.shards.queued_of(job.id, limit=1) else min(len(shards), BULK_RINGS_MAX)
        tx.shards.insert_bulk(prepared or tx.shards.prepared(job, model, shards, now))
    if next is None:
        count = job.plan_cursor.shards + len(shards)
        tx.events.append(job.id, "job.planned", {"shards": count, "rows_total": rows_total}, now)
    return tuple(tx.outbox.add_bulk(rings, job.priority.rank, now))


def refuse_input(tx: Transaction, job: Job, errors: Sequence[InputError], now: datetime) -> bool:
    """Fails a job whose input cannot be run, as the page at its cursor says. False: too late.

    Nothing is left of it if no page of shards was cut. Else it is stopped, and keeps what has finished.
    """
    if not tx.jobs.waits_for_page(job.id, job.plan_cursor.page):
        return False
    if not job.plan_cursor.shards:
        return finish(tx, job, JobState.FAILED, now, counts=Counts(0, 0, 0), errors=errors)
    tx.jobs.record_errors(job.id, errors)
    return request_stop(tx, job, StopReason.FAILED, now)


def claim_bulk(
    tx: Transaction,
    worker_id: str,
    models: Sequence[str],
    now: datetime,
    ttl_s: float,
    *,
    machine: Machine = Machine(),
    room: Room = ROOM_FOR_ALL,
) -> BulkClaim | None:
    """Leases the best bulk shard that `room` does not leave out. The first of a job begins it, with its event
    and its owed webhooks.
    """
    claim = tx.claims.bulk(worker_id, models, now, ttl_s, machine=machine, room=room)
    if claim is not None and claim.begins_job:
        job = tx.jobs.fetch(claim.job.id)
        _append_state_event(tx, job, JobState.RUNNING, now)
        owe(tx, job, RUNNING, now)
    elif claim is not None and claim.lease.term > FIRST_TERM:
        record_resumed(tx, claim, now)
    return claim


def commit_segment(
    tx: Transaction,
    lease: Lease,
    segment: Segment | None,
    now: datetime,
    *,
    rows_total: int | None,
    carry_over_key: str | None = None,
    tokens_in_flight: int = 0,
    worker_time: WorkerTime = NO_TIME,
) -> bool:
    """Lists a stored segment, counts its rows, and replaces the stored carry-over; either may be None.

    `tokens_in_flight`: generated and in neither. `worker_time`: taken for the segment. False: the lease was
    lost. Raises AlreadyListed.
    """
    if segment is not None:
        tx.jobs.lock(lease.job_id)  # segments are numbered in the order of commits
    if not tx.shards.list_segment(
        lease,
        segment,
        rows_total=rows_total,
        carry_over_key=carry_over_key,
        tokens_in_flight=tokens_in_flight,
    ):
        return False
    if segment is not None:
        counts = Counts(None, segment.succeeded, segment.failed)
        job = tx.jobs.add_progress(lease.job_id, counts, segment.usage, segment.size_bytes)
        count_time(tx, lease.job_id, worker_time)
        assert job.model is not None, "a job with shards was planned, and so has a model"
        day = usage_day(now)
        tx.holdings.add(job.tenant_id, Holding(bulk_rows=-segment.rows, stored_bytes=segment.size_bytes))
        tx.usage.add(job.tenant_id, job.model, day, segment.succeeded, segment.failed, segment.usage)
        tx.events.append(lease.job_id, "job.progress", {"counts": counts_json(job.counts)}, now)
        if segment.reused:
            tx.jobs.add_rows_reused(lease.job_id, segment.reused)
            tx.counters.add("rows_reused", segment.reused)
    return True


def count_time(tx: Transaction, job_id: str, worker_time: WorkerTime) -> None:
    """Counts time of workers. It changes the job, and so comes before what changes its shards."""
    if worker_time:
        tx.jobs.add_worker_time(job_id, worker_time)


def count_redone(tx: Transaction, job_id: str, tokens: int) -> None:
    """Counts generated tokens that were lost; the next attempt generates them again."""
    if tokens > 0:
        tx.jobs.add_tokens_redone(job_id, tokens)
        tx.counters.add("tokens_redone", tokens)


def record_answer(tx: Transaction, claim: OnlineClaim, answer: Answer, now: datetime) -> bool:
    """Records an online request's answer and ends its job. False: the lease was lost."""
    recorded = RecordedAnswer.from_answer(answer)
    if not tx.shards.record_result(claim.lease, recorded):
        return False
    counts = Counts(1, int(answer.succeeded), int(not answer.succeeded))
    stored_bytes = len(recorded.text.encode())
    tx.jobs.add_progress(claim.job.id, Counts(None, 0, 0), answer.usage, stored_bytes)
    tx.holdings.add(claim.job.tenant_id, Holding(stored_bytes=stored_bytes))
    tenant, model = claim.job.tenant_id, claim.job.model
    assert model is not None, "an online request names its model"
    tx.usage.add(tenant, model, usage_day(now), counts.succeeded, counts.failed, answer.usage)
    if answer.succeeded:
        return finish(tx, claim.job, JobState.SUCCEEDED, now, counts=counts)
    told = answer.body.get("error") or {}
    error = InputError(str(told.get("code") or "error"), str(told.get("message") or ""))
    return finish(tx, claim.job, JobState.FAILED, now, counts=counts, errors=(error,))


def request_stop(tx: Transaction, job: Job, reason: StopReason, now: datetime) -> bool:
    """Lets a job start no more rows, and stops unclaimed shards: the first here, the others in the stopping
    duty. False: too late.

    A bulk job is then assembled with what it has; an unclaimed online job ends here.
    """
    if not tx.jobs.request_stop(job.tenant_id, job.id, reason, now):
        return False
    stopped = tx.shards.stop_queued(job.id)
    tx.events.append(job.id, "job.stopping", {"reason": reason}, now)
    if job.kind is JobKind.ONLINE and stopped:
        finish(tx, job, reason.final_state, now, counts=Counts(1, 0, 1))
    return True


def cancel(tx: Transaction, job: Job, now: datetime) -> bool:
    """Cancels a job for a client; a repeat changes nothing. False: too late."""
    if job.stop_reason is StopReason.CANCELLED and job.state in CANCELLED_IN_TIME:
        return True
    return request_stop(tx, job, StopReason.CANCELLED, now)


def end_stopped_online(tx: Transaction, job: Job, now: datetime) -> bool:
    """Ends an online job whose worker followed a stop order."""
    assert job.stop_reason is not None, "only a job that was told to stop ends like this"
    return finish(tx, job, job.stop_reason.final_state, now, counts=Counts(1, 0, 1))


def finish(
    tx: Transaction,
    job: Job,
    state: JobState,
    now: datetime,
    *,
    counts: Counts | None = None,
    errors: Sequence[InputError] = (),
    rows_unlisted: int = 0,
    output_file_id: str | None = None,
    error_file_id: str | None = None,
) -> bool:
    """Ends a job once, with its event and its owed webhooks. False: it had ended before."""
    if job.kind is JobKind.BULK:
        tx.jobs.lock(job.id)  # its rows without a result are counted until here
        job = tx.jobs.fetch(job.id)
    if not tx.jobs.finish(
        job.id,
        state,
        now,
        counts=counts,
        errors=errors,
        rows_unlisted=rows_unlisted,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
    ):
        return False
    tx.holdings.add(job.tenant_id, -held_by(job))
    if job.kind is JobKind.BULK:
        for type in PASSING:
            tx.deliveries.drop_owed(job.id, type)  # none is begun after the end
        job_ended(tx, job, state, now)
    ended = tx.jobs.fetch(job.id)
    _append_state_event(tx, ended, state, now)
    if state is JobState.EXPIRED and job.kind is JobKind.BULK:
        owe_run_event(tx, ended, MISSED, now)
    end_type = event_type(ended)
    if end_type is not None:
        owe(tx, ended, end_type, now)
    return True


def append_paused(tx: Transaction, job: Job, now: datetime) -> None:
    """Records the pause of a job, and if it is one between two nights, when it ends."""
    resumes_at = job.resumes_at
    data = {} if resumes_at is None else {"resumes_at": int(resumes_at.timestamp())}
    tx.events.append(job.id, "job.paused", data, now)


def counts_json(counts: Counts) -> JsonObject:
    """The counts as in the API and events."""
    return {"total": counts.total, "succeeded": counts.succeeded, "failed": counts.failed}


def _append_state_event(tx: Transaction, job: Job, state: JobState, now: datetime) -> None:
    tx.events.append(job.id, f"job.{state}", _state_data(job, state), now)


def _state_data(job: Job, state: JobState) -> JsonObject:
    return {"status": state, "counts": counts_json(job.counts)}


SHARD_LOST: Final = "job.shard_lost"  # lost with its worker: `cause` is an ExitCause
SHARD_RETURNED: Final = "job.shard_returned"  # returned by its worker: `cause` is one of the following
SHARD_RESUMED: Final = "job.shard_resumed"  # resumed by another worker after the listed results

HANDED_BACK: Final = "handed_back"  # the worker drains, or the job is paused
POSTPONED: Final = "postponed"  # the storage could not be used
BROKEN: Final = "broken"  # an unforeseen error


def record_lost(tx: Transaction, lost: ExpiredLease, cause: str, now: datetime) -> None:
    ended = Interruption(lost.term, lost.worker_id, cause)
    _interrupted(tx, SHARD_LOST, lost.job_id, lost.shard_no, ended, now)


def record_returned(tx: Transaction, claim: BulkClaim, cause: str) -> None:
    ended = Interruption(claim.lease.term, claim.lease.worker_id, cause)
    _interrupted(tx, SHARD_RETURNED, claim.job.id, claim.shard.shard_no, ended, tx.now())


def record_resumed(tx: Transaction, claim: BulkClaim, now: datetime) -> None:
    """Records the claim of a shard that a worker has had before."""
    shard = claim.shard
    data = {"shard": shard.shard_no, "worker_id": claim.lease.worker_id, "rows_done": shard.rows_done}
    tx.events.append(claim.job.id, SHARD_RESUMED, data, now)


def _interrupted(
    tx: Transaction, type: str, job_id: str, shard_no: int, ended: Interruption, now: datetime
) -> None:
    tx.shards.record_interruption(job_id, shard_no, ended)
    data = {"shard": shard_no, "worker_id": ended.worker_id, "cause": ended.cause}
    tx.events.append(job_id, type, data, now)
