"""GET /v1/deliveries: webhook events and every attempt to deliver them."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.authentication import Caller
from api.dependencies import CallerDep, PageDep, ServicesDep, list_json
from api.responses.times import seconds
from nightshift.errors import NotFound
from nightshift.jobs import JsonObject
from nightshift.outbound.webhooks import Delivery, DeliveryAttempt, DeliveryState
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/deliveries", tags=["Webhooks"])


@router.get("", summary="List deliveries, newest first")
def list_deliveries(
    services: ServicesDep,
    caller: CallerDep,
    page: PageDep,
    status: DeliveryState | None = None,
    job_id: str | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        found = tx.deliveries.list(
            caller.tenant_id,
            limit=page.limit + 1,
            after=None if page.after is None else _get(tx, caller, page.after, param="after"),
            job_id=job_id,
            state=status,
        )
    return JSONResponse(list_json([_delivery_json(delivery) for delivery in found], page.limit))


@router.get("/{delivery_id}", summary="Describe a delivery with its attempts")
def get_delivery(delivery_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        delivery = _get(tx, caller, delivery_id)
        attempts = tx.deliveries.attempts(caller.tenant_id, delivery_id)
    recorded = {"attempts": [_attempt_json(attempt) for attempt in attempts]}
    return JSONResponse(_delivery_json(delivery) | recorded)


def _get(tx: Transaction, caller: Caller, delivery_id: str, param: str = "id") -> Delivery:
    delivery = tx.deliveries.get(caller.tenant_id, delivery_id)
    if delivery is None:
        raise NotFound(f"No such Delivery object: {delivery_id}", param=param)
    return delivery


def _delivery_json(delivery: Delivery) -> JsonObject:
    is_pending = delivery.state is DeliveryState.PENDING
    return {
        "id": delivery.id,
        "object": "delivery",
        "event_id": delivery.event_id,
        "event_type": delivery.event_type,
        "job_id": delivery.job_id,
        "url": delivery.url,
        "status": delivery.state,
        "attempt_count": delivery.attempts,
        "next_at": seconds(delivery.next_at) if is_pending else None,
        "created_at": seconds(delivery.created_at),
        "delivered_at": seconds(delivery.delivered_at),
    }


def _attempt_json(attempt: DeliveryAttempt) -> JsonObject:
    return {
        "attempt_no": attempt.attempt_no,
        "started_at": seconds(attempt.started_at),
        "latency_ms": attempt.latency_ms,
        "status_code": attempt.status_code,
        "error": attempt.error,  # and nothing that the receiver said: it may be a service of the operator's
    }
