"""/v1/tenants: create, list, describe, change and delete tenants."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.tenants import DeletedTenant, TenantCreate, TenantObject, TenantPage, TenantUpdate
from api.dependencies import BodyDep, CallerDep, ListingDep, ServicesDep
from api.services.services import Services
from api.tenants.limits import LimitObject, limits_of
from nightshift.lifecycle.tenants import Administration, get_tenant
from nightshift.store import Transaction
from nightshift.tenants.audit import Actor
from nightshift.tenants.tenant import Tenant

router = APIRouter(prefix="/v1/tenants", tags=["Tenants"])


class TenantDetails(TenantObject):
    limits: dict[str, LimitObject]


@router.post("", summary="Create a tenant", status_code=201, response_model=TenantObject)
async def create(services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(TenantCreate, body)
    made = await run_in_threadpool(
        services.store.run,
        lambda tx: acting(tx, caller).create_tenant(
            fields.name, fields.description, fields.priority_ceiling, fields.quotas.given
        ),
    )
    return _shown(made, 201)


@router.get("", summary="List tenants, newest first", response_model=TenantPage)
def list_tenants(services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        after = listing.start(lambda name: get_tenant(tx, name, param="after"))
        tenants = tx.tenants.list(limit=listing.limit + 1, after=after)
    return JSONResponse(listing.json([TenantObject.shown(tenant) for tenant in tenants]))


@router.get("/{tenant}", summary="Describe a tenant and what it uses", response_model=TenantDetails)
async def describe(tenant: str, services: ServicesDep, caller: CallerDep) -> Response:
    stored = await run_in_threadpool(_find, services, tenant)
    limits = await limits_of(services, tenant, stored.quotas.over(services.settings.quotas.defaults))
    shown = {name: limit.model_dump() for name, limit in limits.items()}
    return JSONResponse(TenantObject.shown(stored) | {"limits": shown})


@router.patch("/{tenant}", summary="Describe a tenant otherwise, or disable it", response_model=TenantObject)
async def update(tenant: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(TenantUpdate, body)
    changed = await run_in_threadpool(
        services.store.run,
        lambda tx: acting(tx, caller).update_tenant(
            tenant,
            description=fields.description,
            disabled=fields.disabled,
            priority_ceiling=fields.priority_ceiling,
            quotas=fields.quotas.given,
        ),
    )
    return _shown(changed)


@router.delete("/{tenant}", summary="Delete a tenant and revoke its keys", response_model=DeletedTenant)
def delete(tenant: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: acting(tx, caller).delete_tenant(tenant))
    return JSONResponse(DeletedTenant(id=tenant).model_dump(mode="json"))


def acting(tx: Transaction, caller: Caller) -> Administration:
    """The caller's administration, which the audit log has under its key."""
    return Administration(tx, Actor.of_key(caller.key_id))


def _shown(tenant: Tenant, status_code: int = 200) -> Response:
    return JSONResponse(TenantObject.shown(tenant), status_code)


def _find(services: Services, tenant: str) -> Tenant:
    with services.store.snapshot() as tx:
        return get_tenant(tx, tenant)
