"""What is going on now: the queue, the jobs that run, those that failed last, and the workers."""

from datetime import datetime
from typing import Final

from api.page.job_rows import JobRow
from api.page.view import Asked, Context, View
from api.readiness import WORKER_SILENCE_MAX
from nightshift.jobs import JobKind, JobState
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

RUNNING_SHOWN: Final = 8
FAILED_SHOWN: Final = 5
WORKERS_SHOWN: Final = 50

_RUNNING: Final = JobFilters(kind=JobKind.BULK, states=(JobState.RUNNING, JobState.FINALIZING))
_FAILED: Final = JobFilters(states=(JobState.FAILED, JobState.EXPIRED))


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    tenant_id = asked.caller.tenant_id
    running = tx.jobs.list(tenant_id, limit=RUNNING_SHOWN, filters=_RUNNING)
    failed = tx.jobs.list(tenant_id, limit=FAILED_SHOWN, filters=_FAILED)
    workers = tx.workers.list(heartbeat_since=now - WORKER_SILENCE_MAX)
    return {
        "unfinished": tx.overview.unfinished(tenant_id),
        "running": [JobRow(job, now) for job in running],
        "failed": [JobRow(job, now) for job in failed],
        "workers": workers[:WORKERS_SHOWN],
        "worker_count": len(workers),
        "models": [model.id for model in tx.workers.models()],
    }


VIEW: Final = View(path="/", title="Overview", template="overview.html", load=load)
