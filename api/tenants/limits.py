"""GET /v1/limits: a tenant's own limits, and what it uses of them."""

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import REQUESTS, STREAMS, UPLOADS
from api.dependencies import CallerDep, ServicesDep
from api.services.services import Services
from nightshift.tenants.holdings import QUEUED, STORED, Holding
from nightshift.tenants.quotas import QUOTA_NAMES, Quotas
from nightshift.tenants.rates import Rate

router = APIRouter(prefix="/v1/limits", tags=["Tenants"])

_RATES = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}


class LimitObject(BaseModel):
    """`limit` null: unlimited. `used` null: not counted, since nothing limits it."""

    limit: int | None
    used: int | None


class LimitsObject(BaseModel):
    id: str
    object: Literal["limits"] = "limits"
    limits: dict[str, LimitObject]


@router.get("", summary="Your limits, and what you use of them", response_model=LimitsObject)
async def own_limits(services: ServicesDep, caller: CallerDep) -> Response:
    limits = await limits_of(services, caller.tenant_id, caller.quotas)
    return JSONResponse(LimitsObject(id=caller.tenant_id, limits=limits).model_dump(mode="json"))


async def limits_of(services: Services, tenant_id: str, quotas: Quotas) -> dict[str, LimitObject]:
    """A tenant's use of every quota that holds. What is in progress is counted in this process alone."""
    limits = quotas.to_json()
    held = await run_in_threadpool(_held, services, tenant_id)
    rates = [Rate(word, limits[name], 0) for name, word in _RATES.items() if name in limits]
    taken = await services.rate_limits.used(tenant_id, rates)
    used = {name: services.slots.held(tenant_id, name) for name in (REQUESTS, STREAMS, UPLOADS)}
    used |= {name: getattr(held, name) for name in (*QUEUED, *STORED)}
    used |= dict(zip((name for name in _RATES if name in limits), taken, strict=True))
    return {name: LimitObject(limit=limits.get(name), used=used.get(name)) for name in QUOTA_NAMES}


def _held(services: Services, tenant_id: str) -> Holding:
    with services.store.snapshot() as tx:
        return tx.holdings.total(tenant_id)
