"""Events that are owed to receivers or were sent to them, and one of them with its attempts."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.job_rows import Tone
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


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id = request.caller.tenant_id
    after = request.text("after")
    filters = DeliveryFilters(
        state=request.choice("state", DeliveryState),
        endpoint_id=request.text("endpoint"),
        job_id=request.text("job"),
    )
    rows = tx.deliveries.list(
        tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else get_delivery(tx, tenant_id, after, param="after"),
        filters=filters,
    )
    endpoints = tx.webhook_endpoints.list(tenant_id, limit=ENDPOINTS_MAX)
    return {
        "names": {endpoint.id: endpoint.name for endpoint in endpoints},
        "deliveries": rows[:PER_PAGE],
        **paged(request, rows, PER_PAGE),
        "filters": filters,
        "is_filtered": filters != DeliveryFilters(),
        "states": list(DeliveryState),
        "tones": TONES,
    }


def replay(request: PageRequest) -> Outcome:
    deliveries.replay(request.path["delivery_id"], request.services, request.caller)
    return Outcome(message="The event is sent once more, under its own id.")


VIEW: Final = View(
    path="/ui/deliveries",
    title="Deliveries",
    template="webhooks/deliveries.html",
    load=load,
    actions=(Action(path="/replay/{delivery_id}", act=replay),),
)


ATTEMPTS_SHOWN: Final = 50  # the last ones: each replay adds up to ten


def load_delivery(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id = request.caller.tenant_id
    delivery = get_delivery(tx, tenant_id, request.path["delivery_id"])
    endpoint_id = delivery.endpoint_id
    return {
        "delivery": delivery,
        "endpoint": None if endpoint_id is None else tx.webhook_endpoints.get(tenant_id, endpoint_id),
        "attempts": tx.deliveries.last_attempts(tenant_id, delivery.id, ATTEMPTS_SHOWN),
        "tones": TONES,
    }


DELIVERY_VIEW: Final = View(
    path="/ui/deliveries/{delivery_id}",
    title="Delivery",
    template="webhooks/delivery.html",
    load=load_delivery,
    is_in_navigation=False,
    section="/ui/deliveries",
    actions=(Action(path="/replay", act=replay),),
)
