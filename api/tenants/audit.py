"""GET /v1/audit: who did what to tenants, keys, webhooks and workers."""

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field

from api.bodies import EpochTime, ListEnvelope, Record
from api.dependencies import CallerDep, ListingDep, ServicesDep
from nightshift.errors import InvalidRequest
from nightshift.tenants.audit import Action

router = APIRouter(prefix="/v1/audit", tags=["Tenants"])

_ID: Final = re.compile(r"aud_([0-9]{1,18})")


class AuditObject(Record):
    """One action. It holds no secret."""

    id: Annotated[str, BeforeValidator(lambda number: f"aud_{number}")]
    object: Literal["audit_entry"] = "audit_entry"
    at: EpochTime
    actor: str
    action: str
    tenant: str | None = Field(validation_alias="tenant_id")
    object_id: str | None
    details: dict[str, Any]


class AuditPage(ListEnvelope):
    data: list[AuditObject]


@router.get("", summary="List what administrators have done, newest first", response_model=AuditPage)
def list_audit(
    services: ServicesDep,
    caller: CallerDep,
    listing: ListingDep,
    tenant: str | None = None,
    action: Action | None = None,
) -> Response:
    before_id = listing.start(_number)
    with services.store.snapshot() as tx:
        entries = tx.audit.list(limit=listing.limit + 1, of_tenant=tenant, action=action, before_id=before_id)
    return JSONResponse(listing.json([AuditObject.shown(entry) for entry in entries]))


def _number(id: str) -> int:
    match = _ID.fullmatch(id)
    if match is None:
        raise InvalidRequest("Invalid 'after': use the `last_id` of a page.", param="after")
    return int(match[1])
