"""GET /v1/usage: a tenant's requests and tokens, by model and day."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import ListEnvelope, Record
from api.dependencies import CallerDep, ServicesDep, list_json
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.lifecycle.tenants import get_tenant
from nightshift.store import Transaction
from nightshift.tenants.usage import DailyUsage, first_day, usage_day

router = APIRouter(prefix="/v1", tags=["Tenants"])

DAYS: Final = 30  # without `since`
LIMIT: Final = 1000  # about 300 KB
SEPARATOR: Final = "/"


class UsageObject(Record):
    """Results of one model on one day."""

    id: str
    object: Literal["usage"] = "usage"
    tenant: str = Field(validation_alias="tenant_id")
    day: date
    model: str
    succeeded: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int


class UsagePage(ListEnvelope):
    data: list[UsageObject]


@dataclass(frozen=True)
class UsageQuery:
    """The days and the model of a usage query. A day is UTC's."""

    since: date | None
    until: date | None
    model: str | None
    limit: int
    after: tuple[date, str] | None


async def _query(
    since: date | None = None,
    until: date | None = None,
    model: str | None = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT)] = LIMIT,
    after: str | None = None,
) -> UsageQuery:
    return UsageQuery(since, until, model, limit, None if after is None else _place(after))


UsageQueryDep = Annotated[UsageQuery, Depends(_query)]


@router.get("/usage", summary="Your requests and tokens, newest day first", response_model=UsagePage)
def own_usage(services: ServicesDep, caller: CallerDep, query: UsageQueryDep) -> Response:
    with services.store.snapshot() as tx:
        return _page(tx, caller.tenant_id, query)


@router.get(
    "/tenants/{tenant}/usage",
    summary="A tenant's requests and tokens, newest day first",
    response_model=UsagePage,
)
def usage_of_tenant(tenant: str, services: ServicesDep, caller: CallerDep, query: UsageQueryDep) -> Response:
    with services.store.snapshot() as tx:
        return _page(tx, get_tenant(tx, tenant).id, query)


def _page(tx: Transaction, tenant: str, query: UsageQuery) -> Response:
    until = query.until or usage_day(tx.now())
    since = query.since or first_day(until, DAYS)
    if since > until:
        raise InvalidRequest(f"Invalid 'since': {since} is after {until}.", param="since")
    days = tx.usage.list(
        tenant,
        limit=query.limit + 1,
        since=since,
        until=until,
        model=query.model,
        after=query.after,
    )
    return JSONResponse(list_json([_shown(used) for used in days], query.limit))


def _shown(used: DailyUsage) -> JsonObject:
    id = f"{used.day}{SEPARATOR}{used.model}"
    return UsageObject(id=id, total_tokens=used.total_tokens, **vars(used)).model_dump(mode="json")


def _place(text: str) -> tuple[date, str]:
    """The day and model in an element's id."""
    day, _, model = text.partition(SEPARATOR)
    try:
        return date.fromisoformat(day), model
    except ValueError as error:
        raise InvalidRequest("Invalid 'after': use the `last_id` of a page.", param="after") from error
