"""The `job.progress` events of a job: a new one for a further percent, instead of one that is still owed.

So a receiver that is away is owed one of each job, and a job has at most 100 of each receiver on record.
"""

from datetime import datetime

from nightshift.jobs import Job, JobState
from nightshift.lifecycle.webhooks.fan_out import owe
from nightshift.outbound.webhook_events import PROGRESS, percent_done, percent_said
from nightshift.store import Transaction


def is_news(tx: Transaction, job: Job) -> bool:
    """Whether a running job is at a further percent than its last event said."""
    percent = percent_done(job)
    if percent is None or job.state is not JobState.RUNNING:
        return False
    last = tx.deliveries.newest(job.id, PROGRESS)
    return percent > (0 if last is None else percent_said(last.body))


def owe_progress(tx: Transaction, job_id: str, now: datetime) -> bool:
    """Records the event if it is news. It is not recorded after the job's end: both lock the job."""
    tx.jobs.lock(job_id)
    job = tx.jobs.fetch(job_id)
    if not is_news(tx, job):
        return False
    tx.deliveries.drop_owed(job_id, PROGRESS)
    owe(tx, job, PROGRESS, now)
    return True
