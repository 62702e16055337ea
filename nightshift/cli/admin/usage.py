"""`nightshift usage`: requests and tokens per tenant, model and day, directly from the database."""

from datetime import datetime
from typing import Annotated, Any

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_list
from nightshift.tenants.usage import DailyUsage, first_day, usage_day

LIST_MAX = 100_000
DAYS = 30
TOKENS = ("PROMPT", "CACHED", "COMPLETION", "REASONING", "TOTAL TOKENS")


def usage(
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this tenant's.  [default: all]", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this model's.  [default: all]", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="The first day, in UTC.  [default: 30 days]", show_default=False
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The last day.  [default: today]", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show usage by tenant, model and day.

    Requests and tokens, newest day first.

    A row counts on the day its result is recorded, once, however often it was begun.
    """
    with operator_store(data_dir) as store, store.snapshot() as tx:
        last = until.date() if until else usage_day(tx.now())
        first = since.date() if since else first_day(last, DAYS)
        days = tx.usage.list(tenant, limit=LIST_MAX, since=first, until=last, model=model)
    headings = (*("DAY", "TENANT", "MODEL", "SUCCEEDED", "FAILED"), *TOKENS)
    print_list([_as_json(used) for used in days], headings, lambda day: tuple(day.values()), json=json)


def _as_json(used: DailyUsage) -> dict[str, Any]:
    return {
        "day": used.day.isoformat(),
        "tenant": used.tenant_id,
        "model": used.model,
        "succeeded": used.succeeded,
        "failed": used.failed,
        "prompt_tokens": used.prompt_tokens,
        "cached_tokens": used.cached_tokens,
        "completion_tokens": used.completion_tokens,
        "reasoning_tokens": used.reasoning_tokens,
        "total_tokens": used.total_tokens,
    }
