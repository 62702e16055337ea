"""Replays: an event is sent once more, under its own id, with a schedule of attempts from its beginning."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.lifecycle.webhooks.endpoints import get_endpoint
from nightshift.outbound.webhook_endpoints import WebhookEndpoint
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import Transaction
from nightshift.tenants.audit import Action, Actor

REPLAYED_MAX: Final = 1000  # deliveries of one call; a further one takes the next


@dataclass(frozen=True)
class ReplayedWindow:
    """`has_more`: there were more dead letters than one call replays."""

    count: int
    has_more: bool


def get_delivery(tx: Transaction, tenant_id: str, id: str, param: str = "id") -> Delivery:
    """Raises NotFound, also for another tenant's."""
    delivery = tx.deliveries.get(tenant_id, id)
    if delivery is None:
        raise NotFound(f"No such Delivery object: {id}", param=param)
    return delivery


def replay_delivery(tx: Transaction, actor: Actor, tenant_id: str, id: str) -> Delivery:
    """Sends a delivery once more, whatever became of it; one that is still owed stays as it is. Raises
    NotFound, and Conflict for one whose endpoint gets no events.
    """
    delivery = get_delivery(tx, tenant_id, id)
    if delivery.state is DeliveryState.PENDING:
        return delivery
    url = delivery.url if delivery.endpoint_id is None else _receiver(tx, tenant_id, delivery.endpoint_id).url
    now = tx.now()
    if tx.deliveries.replay(delivery, url, now):
        tx.audit.record(actor, Action.DELIVERY_REPLAYED, tenant_id, now, object_id=id)
    return get_delivery(tx, tenant_id, id)


def replay_window(
    tx: Transaction, actor: Actor, tenant_id: str, endpoint_id: str, since: datetime, until: datetime
) -> ReplayedWindow:
    """Sends an endpoint its dead letters of events in [since, until) once more, the oldest first. What was
    delivered or is owed stays as it is, so a repeat sends nothing twice. Raises NotFound, Conflict.
    """
    endpoint = get_endpoint(tx, tenant_id, endpoint_id)
    _check_enabled(endpoint)
    now = tx.now()
    count = tx.deliveries.replay_dead(
        tenant_id, endpoint_id, endpoint.url, now, since=since, until=until, limit=REPLAYED_MAX
    )
    if count:
        details = {"since": since.isoformat(), "until": until.isoformat(), "deliveries": count}
        tx.audit.record(
            actor,
            Action.WEBHOOK_ENDPOINT_REPLAYED,
            tenant_id,
            now,
            object_id=endpoint_id,
            details=details,
        )
    has_more = count == REPLAYED_MAX and tx.deliveries.has_dead(
        tenant_id, endpoint_id, since=since, until=until
    )
    return ReplayedWindow(count, has_more)


def _receiver(tx: Transaction, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = tx.webhook_endpoints.get(tenant_id, endpoint_id)
    if endpoint is None:
        raise Conflict("The webhook endpoint of this delivery was deleted.", code="webhook_endpoint_deleted")
    _check_enabled(endpoint)
    return endpoint


def _check_enabled(endpoint: WebhookEndpoint) -> None:
    if not endpoint.is_enabled:
        raise Conflict(
            f"Webhook endpoint {endpoint.id} is disabled ({endpoint.disabled_reason}): update it first, with "
            '{"nightshift": {"disabled": false}} or a new URL.',
            code="webhook_endpoint_disabled",
        )
