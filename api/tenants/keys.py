"""/v1/tenants/{tenant}/keys: create, list, describe, rotate and revoke a tenant's keys."""

from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.bodies import parsed
from api.bodies.tenants import CreatedKeyObject, KeyCreate, KeyObject, KeyPage, KeyRotate
from api.dependencies import BodyDep, CallerDep, ListingDep, ServicesDep
from api.tenants.tenants import acting
from nightshift.lifecycle.tenants import CreatedKey, get_key, get_tenant
from nightshift.store import Transaction
from nightshift.tenants.keys import ApiKey

router = APIRouter(prefix="/v1/tenants/{tenant}/keys", tags=["Tenants"])


@router.post(
    "", summary="Create a key; it is shown this once", status_code=201, response_model=CreatedKeyObject
)
async def create(tenant: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(KeyCreate, body)
    after_s = fields.expires_after_s

    def make(tx: Transaction) -> CreatedKey:
        return acting(tx, caller).create_key(
            tenant,
            name=fields.name,
            scopes=fields.scopes,
            lasts=None if after_s is None else timedelta(seconds=after_s),
        )

    return _created(await run_in_threadpool(services.store.run, make))


@router.get("", summary="List a tenant's keys, without the keys, oldest first", response_model=KeyPage)
def list_keys(tenant: str, services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        get_tenant(tx, tenant)
        after = listing.start(lambda id: get_key(tx, tenant, id, param="after"))
        keys = tx.keys.page(tenant, limit=listing.limit + 1, after=after)
    return JSONResponse(listing.json([KeyObject.shown(key) for key in keys]))


@router.get("/{key_id}", summary="Describe a key, without the key", response_model=KeyObject)
def describe(tenant: str, key_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return _shown(get_key(tx, tenant, key_id))


@router.post(
    "/{key_id}/rotate",
    summary="Replace a key, which stays valid for the overlap",
    status_code=201,
    response_model=CreatedKeyObject,
)
async def rotate(
    tenant: str, key_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep
) -> Response:
    overlap = timedelta(seconds=parsed(KeyRotate, body).overlap_s)
    created = await run_in_threadpool(
        services.store.run, lambda tx: acting(tx, caller).rotate_key(get_key(tx, tenant, key_id), overlap)
    )
    return _created(created)


@router.post("/{key_id}/revoke", summary="Revoke a key", response_model=KeyObject)
def revoke(tenant: str, key_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    return _shown(services.store.run(lambda tx: acting(tx, caller).revoke_key(get_key(tx, tenant, key_id))))


def _shown(key: ApiKey) -> Response:
    return JSONResponse(KeyObject.shown(key))


def _created(created: CreatedKey) -> Response:
    shown = KeyObject.shown(created.stored) | {"key": created.key}
    return JSONResponse(shown, 201, {"cache-control": "no-store"})
