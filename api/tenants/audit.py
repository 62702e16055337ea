"""GET /v1/audit: who did what to tenants, keys, webhooks and workers."""

import re
from typing import Any, Final, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from api.bodies import ListEnvelope
from api.dependencies import CallerDep, ListingDep, ServicesDep, list_json
from api.responses.times import seconds
from nightshift.errors import InvalidRequest
from nightshift.tenants.audit import Action, AuditEntry

router = APIRouter(prefix="/v1/audit", tags=["Tenants"])

_ID: Final = re.compile(r"aud_([0-9]{1,18})")


class AuditObject(BaseModel):
    """One action. It holds no secret."""

    id: str
    object: Literal["audit_entry"] = "audit_entry"
    at: int
    actor: str
    action: str
    tenant: str | None
    object_id: str | None
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> "AuditObject":
        return cls(
            id=f"aud_{entry.id}",
            at=seconds(entry.at),
            actor=entry.actor,
            action=entry.action,
            tenant=entry.tenant_id,
            object_id=entry.object_id,
            details=entry.details,
        )


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
    before_id = None if listing.after is None else _number(listing.after)
    with services.store.snapshot() as tx:
        found = tx.audit.list(limit=listing.limit + 1, of_tenant=tenant, action=action, before_id=before_id)
    shown = [AuditObject.of(entry).model_dump(mode="json") for entry in found]
    return JSONResponse(list_json(shown, listing.limit))


def _number(id: str) -> int:
    match = _ID.fullmatch(id)
    if match is None:
        raise InvalidRequest("Invalid 'after': use the `last_id` of a page.", param="after")
    return int(match[1])
