"""The tenant's jobs, newest first, a page at a time."""

from datetime import datetime
from typing import Final

from api.dependencies import get_job
from api.page.view import Context, PageRequest, View, paged
from api.page.views.job_rows import JobRow
from nightshift.fleet.costs import NO_PRICES
from nightshift.jobs import JobKind, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

PER_PAGE: Final = 50


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    after, state = request.text("after"), request.choice("state", JobState)
    filters = JobFilters(
        states=() if state is None else (state,),
        kind=request.choice("kind", JobKind),
        priority=request.choice("priority", PriorityClass),
        name=request.text("name"),
        model=request.text("model"),
    )
    rows = tx.jobs.list(
        request.caller.tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else get_job(tx, request.caller, after, param="after"),
        filters=filters,
    )
    prices = request.services.settings.api.prices
    return {
        "rows": [JobRow(job, now, prices) for job in rows[:PER_PAGE]],
        "has_prices": prices != NO_PRICES,
        **paged(request, rows, PER_PAGE),
        "filters": filters,
        "is_filtered": filters != JobFilters(),
        "states": list(JobState),
        "kinds": list(JobKind),
        "priorities": list(PriorityClass),
        "models": [model.id for model in tx.workers.models()],
    }


VIEW: Final = View(path="/ui/jobs", title="Jobs", template="jobs/jobs.html", load=load)
