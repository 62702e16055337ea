"""Changes that people, or a job's window, order: of a job that has not ended, the deletion of one that has, a
worker's drain.

Each function is one change in the caller's open transaction. A deleted job is not found from the commit on;
the scheduler deletes its rows and bytes later (`scheduler/duties/deletion.py`).
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.jobs import Face, Job, JobKind, ShardState
from nightshift.jobs.files import JobPart, retry_input_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.transitions import BULK_RINGS_MAX, append_paused
from nightshift.lifecycle.webhooks.fan_out import owe_run_event
from nightshift.outbound.webhook_events import MISSED
from nightshift.store import Transaction
from nightshift.store.jobs.jobs import RUNNABLE_STATES
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.holdings import Holding


@dataclass(frozen=True, kw_only=True)
class JobChanges:
    """Changes to a job. A priority of None stays; metadata stays unless `sets_metadata`."""

    priority: PriorityClass | None = None
    metadata: dict[str, str] | None = None
    sets_metadata: bool = False


def change(tx: Transaction, job: Job, changes: JobChanges, now: datetime) -> tuple[Ring, ...]:
    """Changes a job. Returns the rings to send after the commit. Raises Conflict."""
    tx.jobs.lock(job.id)
    job = tx.jobs.fetch(job.id)
    if changes.sets_metadata:
        spec = replace(job.spec, metadata=changes.metadata)
        more_bytes = spec.stored_bytes - job.spec.stored_bytes
        _in_time(tx.controls.replace_spec(job.tenant_id, job.id, spec, more_bytes), job, "change")
        tx.holdings.add(job.tenant_id, Holding(stored_bytes=more_bytes))
    if changes.priority is None:
        return ()
    _in_time(tx.controls.prioritise(job.tenant_id, job.id, changes.priority), job, "change")
    if changes.priority is job.priority:
        return ()
    tx.events.append(job.id, "job.updated", {"priority": changes.priority}, now)
    return _ring_online(tx, job, changes.priority, now)


def pause(tx: Transaction, job: Job, now: datetime) -> None:
    """Pauses a job, whatever its window: no shard of it is claimed. Workers learn of it with a heartbeat,
    save what they have and hand theirs back.

    A repeat changes nothing. Raises Conflict.
    """
    if job.kind is JobKind.ONLINE:
        raise Conflict("Cannot pause a job of one request; it can be cancelled.")
    if tx.controls.pause(job.tenant_id, job.id, now):
        tx.events.append(job.id, "job.paused", {}, now)
        return
    job = tx.jobs.fetch(job.id)
    _in_time(job.paused_at is not None, job, "pause")


def resume(tx: Transaction, job: Job, now: datetime) -> tuple[Ring, ...]:
    """Resumes a job that a person has paused: its shards may be claimed again, outside its window once that
    opens. Returns the rings to send.

    A repeat changes nothing. Raises Conflict.
    """
    hours = job.spec.hours
    is_open = hours is None or hours.is_open(now)
    turns_at = None if hours is None else hours.turns_at(now)
    if tx.controls.resume(job.tenant_id, job.id, window_turns_at=turns_at, is_open=is_open):
        if not is_open:
            append_paused(tx, tx.jobs.fetch(job.id), now)
            return ()
        tx.events.append(job.id, "job.resumed", {}, now)
        queued = tx.shards.queued_of(job.id, limit=BULK_RINGS_MAX)
        rank = tx.jobs.fetch(job.id).priority.rank
        return tuple(tx.outbox.add_bulk(queued, rank, now))
    job = tx.jobs.fetch(job.id)
    _in_time(job.state in RUNNABLE_STATES and job.stop_reason is None, job, "resume")
    return ()


def turn_window(tx: Transaction, job: Job, now: datetime) -> bool:
    """Pauses a job at the end of its window until the next opening, or lets it go on at the opening. False:
    another scheduler did, or a person has paused it.

    Which of both is decided by the hours as they are now: a scheduler may have been away for days. A night
    that ends with rows left was missed. Workers hand back what they run at the end without being told.
    """
    hours = job.spec.hours
    assert hours is not None, "only a job with a window is at a turn of it"
    is_open = hours.is_open(now)
    paused_at = None if is_open else job.paused_at or now
    if not tx.windows.turn(job, window_turns_at=hours.turns_at(now), paused_at=paused_at):
        return False
    turned = tx.jobs.fetch(job.id)
    if is_open and job.paused_at is not None:
        tx.events.append(job.id, "job.resumed", {}, now)
    if not is_open:
        append_paused(tx, turned, now)
        owe_run_event(tx, turned, MISSED, now, resumes_at=hours.turns_at(now))
    return True


def _in_time(is_changed: bool, job: Job, verb: str) -> None:
    if not is_changed:
        is_stopping = job.stop_reason is not None and not job.state.is_terminal
        status = "that is stopping" if is_stopping else f"with status '{job.state}'"
        raise Conflict(f"Cannot {verb} a job {status}.")


def _ring_online(tx: Transaction, job: Job, priority: PriorityClass, now: datetime) -> tuple[Ring, ...]:
    """A request's first message waits under its old class; bulk messages name no shard."""
    if job.kind is not JobKind.ONLINE:
        return ()
    waiting = [shard for shard in tx.shards.of_job(job.id, limit=1) if shard.state is ShardState.QUEUED]
    return tuple(tx.outbox.add(JobKind.ONLINE, priority.rank, now, shard_id=shard.id) for shard in waiting)


DELIVERIES_AT_ONCE_MAX: Final = 1000  # deliveries of one job; the scheduler deletes the rest


def delete_job(tx: Transaction, job: Job, now: datetime) -> bool:
    """Deletes an ended job for its owner. False: it has not ended.

    Its usage stays, and so do its input and output files, but not the input of a native retry, which the
    service wrote. What is still owed to its webhook is not sent.
    """
    if not tx.deletions.mark_deleted(job.tenant_id, job.id, now):
        return False
    tx.deletions.delete_key(job.id)
    tx.deletions.delete_dead_letters(job.id)
    tx.deletions.delete_deliveries([job.id], DELIVERIES_AT_ONCE_MAX)
    if job.retry_of is not None and job.face is Face.NATIVE:
        tx.files.expire(job.tenant_id, retry_input_id(job.id), now)
    tx.deletions.record([(job.tenant_id, job.id)], JobPart.JOB, now)
    return True


def request_drain(tx: Transaction, actor: Actor, worker_id: str) -> None:
    """The worker hears of it with its next heartbeat. Raises NotFound for one that has stopped."""
    now = tx.now()
    if not tx.workers.request_drain(worker_id, now):
        raise NotFound(
            f"There is no worker {worker_id} that could be drained; `nightshift workers list` shows those "
            "there are.",
            param="id",
        )
    tx.audit.record(actor, Action.WORKER_DRAINED, None, now, object_id=worker_id)
