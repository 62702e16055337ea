"""Keys of a tenant, for administrators: the list, and one key. A new key is shown once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.job_rows import Tone
from api.tenants import keys
from nightshift.errors import InvalidRequest
from nightshift.lifecycle.tenants import get_key, get_tenant
from nightshift.store import Transaction
from nightshift.tenants.keys import DEFAULT_SCOPES, ApiKey, Scope

PER_PAGE: Final = 50
TENANTS_OFFERED: Final = 100
DAY_S: Final = 86_400
DAYS_OFFERED: Final = (30, 90, 365)
SAID: Final = "The new key is shown this once."


@dataclass(frozen=True)
class KeyRow:
    key: ApiKey
    now: datetime

    @property
    def state(self) -> str:
        key = self.key
        if key.revoked_at is not None:
            return "revoked"
        if not key.is_valid(self.now):
            return "expired"
        return "rotated" if key.replaced_by is not None else "valid"

    @property
    def tone(self) -> Tone:
        return {"valid": Tone.GOOD, "rotated": Tone.WARNING}.get(self.state, Tone.OVER)


def tenant_of(request: PageRequest) -> str:
    """The tenant whose keys are meant: the key's own, unless another is named."""
    return request.text("tenant") or request.caller.tenant_id


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant, after = tenant_of(request), request.text("after")
    if tenant != request.caller.tenant_id:
        get_tenant(tx, tenant)
    last = None if after is None else get_key(tx, tenant, after, param="after")
    rows = tx.keys.page(tenant, limit=PER_PAGE + 1, after=last)
    return {
        "rows": [KeyRow(key, now) for key in rows[:PER_PAGE]],
        **paged(request, rows, PER_PAGE),
        "tenant": tenant,
        "tenants": [tenant.id for tenant in tx.tenants.list(limit=TENANTS_OFFERED)],
        "scopes": list(Scope),
        "usual_scopes": DEFAULT_SCOPES,
        "days_offered": DAYS_OFFERED,
        "made": None,
    }


async def create(request: PageRequest) -> Outcome:
    form = request.form
    body: dict[str, Any] = {
        "name": form.get("name", "").strip(),
        "scopes": [scope.value for scope in Scope if form.get(f"scope_{scope}")],
    }
    if days := form.get("days", ""):
        body["expires_after_s"] = _days(days) * DAY_S
    answer = await keys.create(tenant_of(request), request.services, request.caller, body)
    return Outcome(message=SAID, context={"made": made_of(answer)})


def made_of(answer: Response) -> Mapping[str, Any]:
    """The new key in an answer of the API."""
    made: Mapping[str, Any] = json.loads(bytes(answer.body))
    return made


def _days(text: str) -> int:
    """Raises InvalidRequest."""
    if text not in {str(days) for days in DAYS_OFFERED}:
        raise InvalidRequest(
            f"Invalid 'days': it is none of {', '.join(map(str, DAYS_OFFERED))}.", param="days"
        )
    return int(text)


VIEW: Final = View(
    path="/ui/keys",
    title="Keys",
    template="access/keys.html",
    load=load,
    scope=Scope.ADMIN,
    actions=(Action(path="/create", act=create, scope=Scope.ADMIN),),
)


OVERLAPS: Final[Mapping[str, int]] = {"a day": 86_400, "an hour": 3600, "7 days": 7 * 86_400, "no time": 0}


def load_key(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    key = get_key(tx, tenant_of(request), request.path["key_id"])
    row = KeyRow(key, now)
    return {
        "row": row,
        "is_own": key.id == request.caller.key_id,
        "overlaps": OVERLAPS,
        "made": None,
    }


async def rotate(request: PageRequest) -> Outcome:
    overlap = request.form.get("overlap", "")
    if overlap not in OVERLAPS:
        raise InvalidRequest(f"Invalid 'overlap': it is none of {', '.join(OVERLAPS)}.", param="overlap")
    body = {"overlap_s": OVERLAPS[overlap]}
    answer = await keys.rotate(
        tenant_of(request), request.path["key_id"], request.services, request.caller, body
    )
    return Outcome(message=SAID, context={"made": made_of(answer)})


def revoke(request: PageRequest) -> Outcome:
    keys.revoke(tenant_of(request), request.path["key_id"], request.services, request.caller)
    return Outcome(message="The key is revoked.", location=f"/ui/keys{request.query_with()}")


KEY_VIEW: Final = View(
    path="/ui/keys/{key_id}",
    title="Key",
    template="access/key.html",
    load=load_key,
    scope=Scope.ADMIN,
    is_in_navigation=False,
    section="/ui/keys",
    actions=(
        Action(path="/rotate", act=rotate, scope=Scope.ADMIN),
        Action(path="/revoke", act=revoke, scope=Scope.ADMIN),
    ),
)
