"""Asking a job to stop, by the rules of both faces. Knows jobs, not how either face shows them."""

from datetime import datetime
from typing import Final

from nightshift.errors import Conflict
from nightshift.jobs import Job, JobState, StopReason
from nightshift.lifecycle import transitions
from nightshift.store import Transaction

# A job that was asked to stop and yet ended otherwise was asked too late.
STILL_CANCELLED: Final = (JobState.RUNNING, JobState.QUEUED, JobState.FINALIZING, JobState.CANCELLED)


def cancel(tx: Transaction, job: Job, status: str, noun: str, now: datetime) -> Job:
    """The job, cancelling or cancelled; a second request changes nothing. Raises Conflict if it is too late.

    `status` and `noun` are the caller's words for the job, for the message.
    """
    if job.stop_reason is StopReason.CANCELLED and job.state in STILL_CANCELLED:
        return job
    if not transitions.request_stop(tx, job, StopReason.CANCELLED, now):
        raise Conflict(f"Cannot cancel a {noun} with status '{status}'.")
    return tx.jobs.fetch(job.id)
