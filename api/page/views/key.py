"""One key: what it may do, and its end. Rotating and revoking are here, a step away from the list."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.page.view import Action, Asked, Context, Outcome, View
from api.page.views.keys import SAID, KeyRow, made_of, tenant_of
from api.tenants import keys
from nightshift.errors import InvalidRequest
from nightshift.lifecycle.tenants import get_key
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope

OVERLAPS: Final[Mapping[str, int]] = {"a day": 86_400, "an hour": 3600, "7 days": 7 * 86_400, "no time": 0}


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    key = get_key(tx, tenant_of(asked), asked.path["key_id"])
    row = KeyRow(key, now)
    return {
        "row": row,
        "is_own": key.id == asked.caller.key_id,
        "overlaps": OVERLAPS,
        "made": None,
    }


async def rotate(asked: Asked) -> Outcome:
    overlap = asked.form.get("overlap", "")
    if overlap not in OVERLAPS:
        raise InvalidRequest(f"Invalid 'overlap': it is none of {', '.join(OVERLAPS)}.", param="overlap")
    body = {"overlap_s": OVERLAPS[overlap]}
    answer = await keys.rotate(tenant_of(asked), asked.path["key_id"], asked.services, asked.caller, body)
    return Outcome(message=SAID, context={"made": made_of(answer)})


def revoke(asked: Asked) -> Outcome:
    keys.revoke(tenant_of(asked), asked.path["key_id"], asked.services, asked.caller)
    return Outcome(message="The key is revoked.", location=f"/ui/keys{asked.query_with()}")


VIEW: Final = View(
    path="/ui/keys/{key_id}",
    title="Key",
    template="key.html",
    load=load,
    scope=Scope.ADMIN,
    is_in_navigation=False,
    section="/ui/keys",
    actions=(
        Action(path="/rotate", act=rotate, scope=Scope.ADMIN),
        Action(path="/revoke", act=revoke, scope=Scope.ADMIN),
    ),
)
