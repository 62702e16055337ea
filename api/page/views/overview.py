"""The service now: its queue, running jobs, the last failures, workers, and figures over time."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from api.operation.health import WORKER_SILENCE_MAX
from api.page.view import Context, PageRequest, View
from api.page.views.job_rows import JobRow
from nightshift.errors import InvalidRequest
from nightshift.fleet.figures import ALIVE_WITHIN, INTERVAL_S, ServiceFigures
from nightshift.jobs import JobKind, JobState, JsonObject
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

POINTS_MAX: Final = 480  # per chart: more are not seen
HOURS: Final = (2, 12, 48)  # choices of the reader
GAP_S: Final = 4 * INTERVAL_S  # without figures, the line is broken

_Value = Callable[[ServiceFigures], float | None]

_COLUMNS: Final[dict[str, _Value]] = {
    "tokens_out": lambda figures: figures.generation_tokens_per_s,
    "tokens_in": lambda figures: figures.prompt_tokens_per_s,
    "rows": lambda figures: figures.rows_per_s,
    "busy": lambda figures: None if figures.busy_fraction is None else 100 * figures.busy_fraction,
    "first_token_p50": lambda figures: figures.first_token_p50_s.get("interactive"),
    "first_token_p95": lambda figures: figures.first_token_p95_s.get("interactive"),
}

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


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id = request.caller.tenant_id
    running = tx.jobs.list(tenant_id, limit=RUNNING_SHOWN, filters=_RUNNING)
    unfinished = tx.jobs.list(tenant_id, limit=UNFINISHED_READ, filters=_UNFINISHED)
    failed = tx.jobs.list(tenant_id, limit=FAILED_SHOWN, filters=_FAILED)
    workers = tx.workers.list(heartbeat_since=now - WORKER_SILENCE_MAX)
    figures = tx.figures.latest()
    is_fresh = figures is not None and now - figures.at <= FRESH
    return {
        "figures": figures if is_fresh else None,
        "hours": _hours(request),
        "hours_offered": HOURS,
        "unfinished": tx.overview.unfinished(tenant_id),
        "running": [JobRow(job, now) for job in running],
        "hindered": [JobRow(job, now) for job in unfinished if job.problem is not None],
        "failed": [JobRow(job, now) for job in failed],
        "workers": workers[:WORKERS_SHOWN],
        "worker_count": len(workers),
        "models": [model.id for model in tx.workers.models()],
    }


def _hours(request: PageRequest) -> int:
    """Hours that the charts cover. Raises InvalidRequest."""
    text = request.text("hours") or str(HOURS[0])
    if text not in map(str, HOURS):
        offered = ", ".join(map(str, HOURS))
        raise InvalidRequest(f"Invalid 'hours': {text!r} is none of {offered}.", param="hours")
    return int(text)


def load_figures(tx: Transaction, request: PageRequest, now: datetime) -> JsonObject:
    """Columns for the charts, of the whole service, as in /metrics."""
    hours = _hours(request)
    figures = tx.figures.since(now - timedelta(hours=hours), ROWS_MAX, every=every(hours))
    return columns(figures, hours)


def every(hours: int) -> int:
    """Number of samples per chart point."""
    return math.ceil(hours * 3600 / INTERVAL_S / POINTS_MAX)


def columns(figures: Sequence[ServiceFigures], hours: int) -> JsonObject:
    """`at`, in seconds since the epoch, and a list for each column; None where nothing is known."""
    longest_s = GAP_S * every(hours)
    drawn: dict[str, list[float | None]] = {"at": [], **{name: [] for name in _COLUMNS}}
    for place, sample in enumerate(figures):
        at_s = sample.at.timestamp()
        if place and at_s - figures[place - 1].at.timestamp() > longest_s:
            _append(drawn, at_s - 1, dict.fromkeys(_COLUMNS))
        _append(drawn, at_s, {name: value(sample) for name, value in _COLUMNS.items()})
    return dict(drawn)


def _append(drawn: dict[str, list[float | None]], at_s: float, values: dict[str, float | None]) -> None:
    drawn["at"].append(at_s)
    for name, value in values.items():
        drawn[name].append(None if value is None else round(value, 3))


VIEW: Final = View(
    path="/",
    title="Overview",
    template="service/overview.html",
    load=load,
    data={"/ui/figures": load_figures},
)
