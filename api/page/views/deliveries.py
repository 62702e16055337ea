"""Events that are owed to receivers or were sent to them, newest first."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.page.job_rows import Tone
from api.page.view import Action, Asked, Context, Outcome, View
from api.webhooks import deliveries
from nightshift.lifecycle.webhooks.replays import get_delivery
from nightshift.outbound.webhook_endpoints import ENDPOINTS_MAX
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Transaction
from nightshift.store.webhooks.deliveries import DeliveryFilters

PER_PAGE: Final = 50
TONES: Final[Mapping[DeliveryState, Tone]] = {
    DeliveryState.PENDING: Tone.WAITING,
    DeliveryState.DELIVERED: Tone.GOOD,
    DeliveryState.DEAD: Tone.BAD,
}


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    tenant_id = asked.caller.tenant_id
    after = asked.text("after")
    filters = DeliveryFilters(
        state=asked.choice("state", DeliveryState),
        endpoint_id=asked.text("endpoint"),
        job_id=asked.text("job"),
    )
    found = tx.deliveries.list(
        tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else get_delivery(tx, tenant_id, after, param="after"),
        filters=filters,
    )
    endpoints = tx.webhook_endpoints.list(tenant_id, limit=ENDPOINTS_MAX)
    return {
        "names": {each.id: each.name for each in endpoints},
        "deliveries": found[:PER_PAGE],
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "is_first": after is None,
        "filters": filters,
        "is_filtered": filters != DeliveryFilters(),
        "states": list(DeliveryState),
        "tones": TONES,
    }


def replay(asked: Asked) -> Outcome:
    deliveries.replay(asked.path["delivery_id"], asked.services, asked.caller)
    return Outcome(message="The event is sent once more, under its own id.")


VIEW: Final = View(
    path="/ui/deliveries",
    title="Deliveries",
    template="deliveries.html",
    load=load,
    actions=(Action(path="/replay/{delivery_id}", act=replay),),
)
