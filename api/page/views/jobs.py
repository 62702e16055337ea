"""The tenant's jobs, newest first, a page at a time."""

from datetime import datetime
from typing import Final

from api.dependencies import get_job
from api.page.job_rows import JobRow
from api.page.view import Asked, Context, View
from nightshift.fleet.costs import NO_PRICES
from nightshift.jobs import JobKind, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Transaction
from nightshift.store.jobs.listing import JobFilters

PER_PAGE: Final = 50


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    after, state = asked.text("after"), asked.choice("state", JobState)
    filters = JobFilters(
        states=() if state is None else (state,),
        kind=asked.choice("kind", JobKind),
        priority=asked.choice("priority", PriorityClass),
        name=asked.text("name"),
        model=asked.text("model"),
    )
    found = tx.jobs.list(
        asked.caller.tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else get_job(tx, asked.caller, after, param="after"),
        filters=filters,
    )
    prices = asked.services.settings.api.prices
    return {
        "rows": [JobRow(job, now, prices) for job in found[:PER_PAGE]],
        "has_prices": prices != NO_PRICES,
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "filters": filters,
        "is_filtered": filters != JobFilters(),
        "is_first": after is None,
        "states": list(JobState),
        "kinds": list(JobKind),
        "priorities": list(PriorityClass),
        "models": [model.id for model in tx.workers.models()],
    }


VIEW: Final = View(path="/ui/jobs", title="Jobs", template="jobs.html", load=load)
