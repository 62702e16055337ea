"""What is going on now: the queue, the jobs that run, those that failed last, and the workers."""

from datetime import datetime, timedelta
from typing import Final

from api.operation.readiness import WORKER_SILENCE_MAX
from api.page.figures import HOURS, POINTS_MAX, columns, every
from api.page.job_rows import JobRow
from api.page.view import Asked, Context, View
from nightshift.errors import InvalidRequest
from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.jobs import JobKind, JobState, JsonObject
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

RUNNING_SHOWN: Final = 8
FAILED_SHOWN: Final = 5
UNFINISHED_READ: Final = 50  # the newest; those with a problem among them are shown
WORKERS_SHOWN: Final = 50
ROWS_MAX: Final = 2 * POINTS_MAX  # figures may be told a little more often
FRESH: Final = 2 * ALIVE_WITHIN  # figures that are older say nothing of now

_RUNNING: Final = JobFilters(kind=JobKind.BULK, states=(JobState.RUNNING, JobState.FINALIZING))
_UNFINISHED: Final = JobFilters(
    kind=JobKind.BULK, states=tuple(state for state in JobState if not state.is_terminal)
)
_FAILED: Final = JobFilters(states=(JobState.FAILED, JobState.EXPIRED))


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    tenant_id = asked.caller.tenant_id
    running = tx.jobs.list(tenant_id, limit=RUNNING_SHOWN, filters=_RUNNING)
    unfinished = tx.jobs.list(tenant_id, limit=UNFINISHED_READ, filters=_UNFINISHED)
    failed = tx.jobs.list(tenant_id, limit=FAILED_SHOWN, filters=_FAILED)
    workers = tx.workers.list(heartbeat_since=now - WORKER_SILENCE_MAX)
    figures = tx.figures.latest()
    is_fresh = figures is not None and now - figures.at <= FRESH
    return {
        "figures": figures if is_fresh else None,
        "hours": _hours(asked),
        "hours_offered": HOURS,
        "unfinished": tx.overview.unfinished(tenant_id),
        "running": [JobRow(job, now) for job in running],
        "hindered": [JobRow(job, now) for job in unfinished if job.problem is not None],
        "failed": [JobRow(job, now) for job in failed],
        "workers": workers[:WORKERS_SHOWN],
        "worker_count": len(workers),
        "models": [model.id for model in tx.workers.models()],
    }


def _hours(asked: Asked) -> int:
    """Raises InvalidRequest."""
    text = asked.text("hours") or str(HOURS[0])
    if text not in map(str, HOURS):
        offered = ", ".join(map(str, HOURS))
        raise InvalidRequest(f"Invalid 'hours': {text!r} is none of {offered}.", param="hours")
    return int(text)


def load_figures(tx: Transaction, asked: Asked, now: datetime) -> JsonObject:
    """What the charts are drawn from. Of the whole service, as /metrics."""
    hours = _hours(asked)
    found = tx.figures.since(now - timedelta(hours=hours), ROWS_MAX, every=every(hours))
    return columns(found, hours)


VIEW: Final = View(
    path="/",
    title="Overview",
    template="overview.html",
    load=load,
    data={"/ui/figures": load_figures},
)
