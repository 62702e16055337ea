"""/v1/deliveries: webhook events with every attempt to deliver them; replays."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import EpochTime, ListEnvelope, Record
from api.dependencies import CallerDep, CreatedBetweenDep, ListingDep, ServicesDep
from nightshift.jobs import JsonObject
from nightshift.lifecycle.webhooks.replays import get_delivery, replay_delivery
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.audit import Actor

router = APIRouter(prefix="/v1/deliveries", tags=["Webhooks"])


class DeliveryObject(Record):
    """`webhook_endpoint_id` is null where the event is owed to the job's own URL."""

    id: str
    object: Literal["delivery"] = "delivery"
    event_id: str
    event_type: str
    job_id: str
    webhook_endpoint_id: str | None = Field(validation_alias="endpoint_id")
    url: str
    status: DeliveryState = Field(validation_alias="state")
    attempt_count: int = Field(validation_alias="attempts")
    next_at: EpochTime | None
    created_at: EpochTime
    delivered_at: EpochTime | None
    replayed_at: EpochTime | None


class AttemptObject(Record):
    """An attempt, without what the receiver said: it may be a service of the operator's."""

    attempt_no: int
    started_at: EpochTime
    latency_ms: int
    status_code: int | None
    error: str | None


class DeliveryWithAttempts(DeliveryObject):
    attempts: list[AttemptObject]


class DeliveryPage(ListEnvelope):
    data: list[DeliveryObject]


async def _filters(
    status: DeliveryState | None = None,
    job_id: str | None = None,
    webhook_endpoint_id: str | None = None,
    created: CreatedBetweenDep = (None, None),
) -> DeliveryFilters:
    created_from, created_before = created
    return DeliveryFilters(
        job_id=job_id,
        endpoint_id=webhook_endpoint_id,
        state=status,
        created_from=created_from,
        created_before=created_before,
    )


@router.get("", summary="List deliveries, newest first", response_model=DeliveryPage)
def list_deliveries(
    services: ServicesDep,
    caller: CallerDep,
    listing: ListingDep,
    filters: Annotated[DeliveryFilters, Depends(_filters)],
) -> Response:
    with services.store.snapshot() as tx:
        after = listing.start(lambda id: get_delivery(tx, caller.tenant_id, id, param="after"))
        deliveries = tx.deliveries.list(
            caller.tenant_id, limit=listing.limit + 1, after=after, filters=filters
        )
    return JSONResponse(listing.json([_shown(delivery) for delivery in deliveries]))


@router.get(
    "/{delivery_id}", summary="Describe a delivery with its attempts", response_model=DeliveryWithAttempts
)
def describe(delivery_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        delivery = get_delivery(tx, caller.tenant_id, delivery_id)
        attempts = tx.deliveries.attempts(caller.tenant_id, delivery_id)
    shown = [AttemptObject.shown(attempt) for attempt in attempts]
    return JSONResponse(_shown(delivery) | {"attempts": shown})


@router.post("/{delivery_id}/replay", summary="Send an event once more", response_model=DeliveryObject)
def replay(delivery_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    actor = Actor.of_key(caller.key_id)
    replayed = services.store.run(lambda tx: replay_delivery(tx, actor, caller.tenant_id, delivery_id))
    return JSONResponse(_shown(replayed))


def _shown(delivery: Delivery) -> JsonObject:
    shown = DeliveryObject.shown(delivery)
    return shown if delivery.state is DeliveryState.PENDING else shown | {"next_at": None}
