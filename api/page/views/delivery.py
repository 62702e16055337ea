"""One event that is owed to a receiver, with the attempts to deliver it."""

from datetime import datetime
from typing import Final

from api.page.view import Action, Asked, Context, View
from api.page.views.deliveries import TONES, replay
from nightshift.lifecycle.webhooks.replays import get_delivery
from nightshift.store import Transaction

ATTEMPTS_SHOWN: Final = 50  # the last ones: each replay adds up to ten


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    tenant_id = asked.caller.tenant_id
    delivery = get_delivery(tx, tenant_id, asked.path["delivery_id"])
    endpoint_id = delivery.endpoint_id
    return {
        "delivery": delivery,
        "endpoint": None if endpoint_id is None else tx.webhook_endpoints.get(tenant_id, endpoint_id),
        "attempts": tx.deliveries.last_attempts(tenant_id, delivery.id, ATTEMPTS_SHOWN),
        "tones": TONES,
    }


VIEW: Final = View(
    path="/ui/deliveries/{delivery_id}",
    title="Delivery",
    template="delivery.html",
    load=load,
    is_in_navigation=False,
    section="/ui/deliveries",
    actions=(Action(path="/replay", act=replay),),
)
