"""Keys of a tenant, for administrators. A new one is shown once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from api.page.job_rows import Tone
from api.page.view import Action, Asked, Context, Outcome, View
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


def tenant_of(asked: Asked) -> str:
    """The tenant whose keys are meant: the key's own, unless another is named."""
    return asked.text("tenant") or asked.caller.tenant_id


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    tenant, after = tenant_of(asked), asked.text("after")
    if tenant != asked.caller.tenant_id:
        get_tenant(tx, tenant)
    last = None if after is None else get_key(tx, tenant, after, param="after")
    found = tx.keys.page(tenant, limit=PER_PAGE + 1, after=last)
    return {
        "rows": [KeyRow(key, now) for key in found[:PER_PAGE]],
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "is_first": after is None,
        "tenant": tenant,
        "tenants": [each.id for each in tx.tenants.list(limit=TENANTS_OFFERED)],
        "scopes": list(Scope),
        "usual_scopes": DEFAULT_SCOPES,
        "days_offered": DAYS_OFFERED,
        "made": None,
    }


async def create(asked: Asked) -> Outcome:
    form = asked.form
    body: dict[str, Any] = {
        "name": form.get("name", "").strip(),
        "scopes": [scope.value for scope in Scope if form.get(f"scope_{scope}")],
    }
    if days := form.get("days", ""):
        body["expires_after_s"] = _days(days) * DAY_S
    answer = await keys.create(tenant_of(asked), asked.services, asked.caller, body)
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
    template="keys.html",
    load=load,
    scope=Scope.ADMIN,
    actions=(Action(path="/create", act=create, scope=Scope.ADMIN),),
)
