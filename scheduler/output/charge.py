"""Whether a job's output is still this process's to write.

Not if another leads by now, and not if the job has ended: what lies at its place is complete then, or another
job's by now.
"""

from nightshift.jobs import Job, JobState
from nightshift.store import Store
from scheduler.runtime.duty import MayContinue, check


class AlreadyEnded(Exception):
    """The job has ended: nobody may change its output any more."""


def check_charge(job: Job, store: Store, may_continue: MayContinue) -> None:
    """Raises AlreadyEnded, Interrupted, and DatabaseUnavailable."""
    with store.snapshot() as tx:
        state = tx.jobs.fetch(job.id).state
    if state is not JobState.FINALIZING:
        raise AlreadyEnded
    check(may_continue)  # last: asking the database took a while
