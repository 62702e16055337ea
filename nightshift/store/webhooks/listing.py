"""The statement for a page of a tenant's deliveries, newest first, in the order of an index."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, select, tuple_

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import tables

delivery = tables.delivery


@dataclass(frozen=True, kw_only=True)
class DeliveryFilters:
    """Which deliveries. None: any."""

    job_id: str | None = None
    endpoint_id: str | None = None
    state: DeliveryState | None = None
    created_from: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive


ANY_DELIVERY = DeliveryFilters()


def listing(
    tenant_id: str, limit: int, after: Delivery | None, filters: DeliveryFilters
) -> Select[tuple[Any, ...]]:
    """`after`: the last delivery of the previous page."""
    wanted = select(delivery).where(delivery.c.tenant_id == tenant_id)
    equal = {"job_id": filters.job_id, "endpoint_id": filters.endpoint_id, "state": filters.state}
    for column, value in equal.items():
        if value is not None:
            wanted = wanted.where(delivery.c[column] == value)
    if filters.created_from is not None:
        wanted = wanted.where(delivery.c.created_at >= filters.created_from)
    if filters.created_before is not None:
        wanted = wanted.where(delivery.c.created_at < filters.created_before)
    if after is not None:
        place = tuple_(
            bindparam(None, after.created_at, type_=delivery.c.created_at.type),
            bindparam(None, after.id, type_=delivery.c.id.type),
        )
        wanted = wanted.where(tuple_(delivery.c.created_at, delivery.c.id) < place)
    return wanted.order_by(delivery.c.created_at.desc(), delivery.c.id.desc()).limit(limit)
