"""Every change of a job's state, shared by the API, the scheduler and the workers.

Each function is one change in the caller's open transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.jobs import (
    Answer,
    Counts,
    InputError,
    Job,
    JobKind,
    JobState,
    JsonObject,
    NewJob,
    NewShard,
    OnlineClaim,
    Segment,
    StopReason,
)
from nightshift.jobs.ids import new_id
from nightshift.jobs.leases import Lease
from nightshift.outbound.webhooks import Delivery, DeliveryState, event_body, event_type, wants
from nightshift.store import Transaction
from nightshift.store.shards.outbox import Ring
from nightshift.tenants.usage import usage_day

BULK_RINGS_MAX: Final = 64  # per planned job: they wake the workers, which then claim without rings

# A job that was asked to stop and yet ended otherwise was asked too late.
CANCELLED_IN_TIME: Final = (JobState.RUNNING, JobState.QUEUED, JobState.FINALIZING, JobState.CANCELLED)


@dataclass(frozen=True)
class Submitted:
    """An accepted job, and the rings to send after the commit."""

    job: Job
    shard_id: str | None  # of an online job
    rings: tuple[Ring, ...]


def submit_bulk(tx: Transaction, new: NewJob, now: datetime) -> Submitted:
    """Accept a bulk job; the scheduler reads its input next."""
    job = tx.jobs.insert(new, now)
    tx.events.begin(job.id, *_accepted_event(job), now)
    return Submitted(job, None, ())


def submit_online(tx: Transaction, new: NewJob, body: JsonObject, now: datetime) -> Submitted:
    """Accept an online request, claimable at once."""
    assert new.model is not None, "an online request names its model"
    job = new.accepted(now)
    ring = tx.online.insert(new, body, _accepted_event(job), now)
    return Submitted(job, ring.shard_id, (ring,))


def plan(
    tx: Transaction,
    job: Job,
    model: str,
    shards: Sequence[NewShard],
    now: datetime,
    *,
    rows_total: int | None = None,
    rows_estimated: int | None = None,
) -> tuple[Ring, ...]:
    """Record a bulk job's shards, claimable from now on. Empty: too late."""
    if not tx.jobs.mark_planned(
        job.id, model=model, rows_total=rows_total, rows_estimated=rows_estimated, now=now
    ):
        return ()
    tx.shards.insert_bulk(job, model, shards, now)
    tx.events.append(job.id, "job.planned", {"shards": len(shards), "rows_total": rows_total}, now)
    count = min(len(shards), BULK_RINGS_MAX)
    return tuple(tx.outbox.add(JobKind.BULK, job.priority.rank, now) for _ in range(count))


def commit_segment(
    tx: Transaction,
    lease: Lease,
    segment: Segment | None,
    now: datetime,
    *,
    rows_total: int | None,
    carry_over_key: str | None = None,
    tokens_in_flight: int = 0,
) -> bool:
    """List a stored segment and count its rows, and replace the stored carry-over; either may be None.

    `tokens_in_flight`: generated and in neither. False: the lease was lost. Raises AlreadyListed.
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
        tx.jobs.add_progress(lease.job_id, Counts(None, segment.succeeded, segment.failed), segment.usage)
        job = tx.jobs.fetch(lease.job_id)
        assert job.model is not None, "a job with shards was planned, and so has a model"
        day = usage_day(now)
        tx.usage.add(job.tenant_id, job.model, day, segment.succeeded, segment.failed, segment.usage)
        tx.events.append(lease.job_id, "job.progress", {"counts": counts_json(job)}, now)
    return True


def count_redone(tx: Transaction, job_id: str, tokens: int) -> None:
    """Count generated tokens that were lost; the next attempt generates them again."""
    if tokens > 0:
        tx.jobs.add_tokens_redone(job_id, tokens)
        tx.counters.add("tokens_redone", tokens)


def record_answer(tx: Transaction, claim: OnlineClaim, answer: Answer, now: datetime) -> bool:
    """Record an online request's answer and end its job. False: the lease was lost."""
    if not tx.shards.record_result(claim.lease, answer):
        return False
    counts = Counts(1, int(answer.succeeded), int(not answer.succeeded))
    tx.jobs.add_progress(claim.job.id, Counts(None, 0, 0), answer.usage)
    assert claim.job.model is not None, "an online request names its model"
    tx.usage.add(
        claim.job.tenant_id, claim.job.model, usage_day(now), counts.succeeded, counts.failed, answer.usage
    )
    error = answer.body.get("error") or {}
    errors = (
        ()
        if answer.succeeded
        else (InputError(str(error.get("code") or "error"), str(error.get("message") or "")),)
    )
    state = JobState.SUCCEEDED if answer.succeeded else JobState.FAILED
    return finish(tx, claim.job, state, now, counts=counts, errors=errors)


def request_stop(tx: Transaction, job: Job, reason: StopReason, now: datetime) -> bool:
    """Start no more rows, and stop unclaimed shards. False: too late.

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
    """Cancel a job for a client; a repeat changes nothing. False: too late."""
    if job.stop_reason is StopReason.CANCELLED and job.state in CANCELLED_IN_TIME:
        return True
    return request_stop(tx, job, StopReason.CANCELLED, now)


def end_stopped_online(tx: Transaction, job: Job, now: datetime) -> bool:
    """End an online job whose worker followed a stop order."""
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
    output_file_id: str | None = None,
    error_file_id: str | None = None,
) -> bool:
    """End a job once, with its event and its owed webhook. False: it had ended before."""
    if not tx.jobs.finish(
        job.id,
        state,
        now,
        counts=counts,
        errors=errors,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
    ):
        return False
    ended = tx.jobs.fetch(job.id)
    _append_state_event(tx, ended, state, now)
    _insert_delivery(tx, ended, now)
    return True


def counts_json(job: Job) -> JsonObject:
    """Counts as in the API and events."""
    return {"total": job.counts.total, "succeeded": job.counts.succeeded, "failed": job.counts.failed}


def _accepted_event(job: Job) -> tuple[str, JsonObject]:
    return f"job.{job.state}", _state_data(job, job.state)


def _append_state_event(tx: Transaction, job: Job, state: JobState, now: datetime) -> None:
    tx.events.append(job.id, f"job.{state}", _state_data(job, state), now)


def _state_data(job: Job, state: JobState) -> JsonObject:
    return {"status": state, "counts": counts_json(job)}


def _insert_delivery(tx: Transaction, job: Job, now: datetime) -> None:
    webhook = job.spec.webhook
    type = event_type(job)
    if webhook is None or not wants(webhook.events, type):
        return
    event_id = new_id("evt")
    tx.deliveries.insert(
        Delivery(
            id=new_id("dlv"),
            event_id=event_id,
            tenant_id=job.tenant_id,
            job_id=job.id,
            event_type=type,
            url=webhook.url,
            body=event_body(event_id, type, job, now),
            state=DeliveryState.PENDING,
            attempts=0,
            next_at=now,
            created_at=now,
        )
    )
