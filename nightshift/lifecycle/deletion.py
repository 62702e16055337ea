"""Deletes an ended job for its owner: it is found no more from the commit on; the scheduler deletes its rows
and bytes after that (`scheduler/duties/deletion.py`).
"""

from datetime import datetime
from typing import Final

from nightshift.jobs import Face, Job
from nightshift.jobs.deletion import JobPart
from nightshift.jobs.files import retry_input_id
from nightshift.store import Transaction

DELIVERIES_AT_ONCE_MAX: Final = 1000  # of one job; the scheduler deletes the rest


def delete_job(tx: Transaction, job: Job, now: datetime) -> bool:
    """In the caller's transaction. Its usage stays, and so do its input and output files, but not the input
    of a native retry, which the service wrote. What is still owed to its webhook is not sent. False: it has
    not ended.
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
