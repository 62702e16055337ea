"""Who is owed an event of a job: its own webhook, and every endpoint of its tenant that asks for it."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from nightshift.jobs import Job
from nightshift.jobs.ids import new_id
from nightshift.outbound.webhook_endpoints import ENDPOINTS_MAX, WebhookEndpoint
from nightshift.outbound.webhook_events import EVENT_TYPES, event_body, wants
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import Transaction


def owe(tx: Transaction, job: Job, event_type: str, now: datetime, more: Mapping[str, Any] = {}) -> None:
    """Records an event's deliveries, in the transaction that makes the event true. All have its id. That of a
    disabled endpoint is a dead letter, which can be replayed. `more`: of the event's data. A sample
    has none.
    """
    if job.spec.estimate is not None:
        return
    tx.deliveries.insert(*_deliveries(tx, job, event_type, now, more))


def owe_run_event(tx: Transaction, job: Job, event_type: str, now: datetime, **times: datetime) -> None:
    """Records an event of a job that its owner is told as well, with these times."""
    more = {name: int(at.timestamp()) for name, at in times.items()}
    tx.events.append(job.id, event_type, more, now)
    owe(tx, job, event_type, now, more)


def _deliveries(
    tx: Transaction, job: Job, event_type: str, now: datetime, more: Mapping[str, Any]
) -> Iterator[Delivery]:
    event_id = new_id("evt")
    webhook = job.spec.webhook
    if webhook is not None and wants(webhook.events, event_type):
        yield _delivery(job, event_type, event_id, now, more, webhook.url)
    for endpoint in tx.webhook_endpoints.list(job.tenant_id, limit=ENDPOINTS_MAX):
        # What passes and could not be sent is outdated: it becomes no dead letter.
        if endpoint.wants(event_type) and (endpoint.is_enabled or not EVENT_TYPES[event_type].is_passing):
            yield _delivery(job, event_type, event_id, now, more, endpoint.url, endpoint)


def _delivery(
    job: Job,
    event_type: str,
    event_id: str,
    now: datetime,
    more: Mapping[str, Any],
    url: str,
    endpoint: WebhookEndpoint | None = None,
) -> Delivery:
    is_due = endpoint is None or endpoint.is_enabled
    return Delivery(
        id=new_id("dlv"),
        event_id=event_id,
        tenant_id=job.tenant_id,
        job_id=job.id,
        endpoint_id=None if endpoint is None else endpoint.id,
        event_type=event_type,
        url=url,
        body=event_body(event_id, event_type, job, now, more),
        state=DeliveryState.PENDING if is_due else DeliveryState.DEAD,
        attempts=0,
        next_at=now,
        created_at=now,
    )
