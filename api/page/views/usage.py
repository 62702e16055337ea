"""The tenant's usage by day and model, and its limits."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from api.page.view import Context, PageRequest, View
from nightshift.errors import InvalidRequest
from nightshift.store import Transaction
from nightshift.tenants.holdings import QUEUED, STORED
from nightshift.tenants.quotas import QUOTA_NAMES
from nightshift.tenants.usage import first_day, usage_day

DAYS: Final = 30
PER_PAGE: Final = 100
SEPARATOR: Final = "/"  # between day and model in `after`


@dataclass(frozen=True)
class LimitRow:
    """`limit` None: unlimited. `used` None: counted where requests are taken in, and not here."""

    name: str
    limit: int | None
    used: int | None


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    until, after = usage_day(now), request.text("after")
    usage = tx.usage.list(
        request.caller.tenant_id,
        limit=PER_PAGE + 1,
        since=first_day(until, DAYS),
        until=until,
        after=None if after is None else _place(after),
    )
    days = usage[:PER_PAGE]
    return {
        "days": days,
        "older": f"{days[-1].day}{SEPARATOR}{days[-1].model}" if len(usage) > PER_PAGE else None,
        "is_first": after is None,
        "limits": _limits(tx, request),
        "shown_days": DAYS,
    }


def _limits(tx: Transaction, request: PageRequest) -> list[LimitRow]:
    limits, held = request.caller.quotas.to_json(), tx.holdings.total(request.caller.tenant_id)
    used = {name: getattr(held, name) for name in (*QUEUED, *STORED)}
    return [LimitRow(name, limits.get(name), used.get(name)) for name in QUOTA_NAMES]


def _place(text: str) -> tuple[date, str]:
    day, _, model = text.partition(SEPARATOR)
    try:
        return date.fromisoformat(day), model
    except ValueError as error:
        raise InvalidRequest("Invalid 'after': it is of no page of this list.", param="after") from error


VIEW: Final = View(path="/ui/usage", title="Usage", template="access/usage.html", load=load)
