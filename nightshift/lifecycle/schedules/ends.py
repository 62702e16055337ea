"""The end of a schedule's run, with or without a job."""

from datetime import datetime

from nightshift.jobs import Job, JobState
from nightshift.schedules.runs import Run, RunState
from nightshift.store import Transaction


def job_ended(tx: Transaction, job: Job, state: JobState, now: datetime) -> None:
    """Ends the run whose job has ended, if it is a run's, and has what waits for it looked at."""
    if job.spec.name is None:
        return
    succeeded = state is JobState.SUCCEEDED
    reason = None if succeeded else f"{job.id} ended as {state}."
    run = tx.schedules.end_run_of_job(
        job.id, RunState.SUCCEEDED if succeeded else RunState.FAILED, reason, now
    )
    if run is not None:
        tx.schedules.wake(run, now)


def end_run(tx: Transaction, run: Run, state: RunState, reason: str, now: datetime) -> None:
    """Ends a run that waits, for good, and has what waits for it looked at."""
    tx.schedules.change_run(run.id, state=state, reason=reason, ended_at=now, check_at=None)
    tx.schedules.wake(run, now)
