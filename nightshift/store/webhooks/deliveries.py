"""Statements about webhook deliveries and their attempts."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from nightshift.outbound.webhook_events import PROGRESS
from nightshift.outbound.webhooks import Delivery, DeliveryAttempt, DeliveryState
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


delivery = tables.delivery
attempt = tables.delivery_attempt
gone = tables.gone_endpoint


@dataclass(frozen=True)
class Owed:
    pending: int
    dead: int  # given up
    oldest_at: datetime | None  # of those pending, when it was made


class Deliveries:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, *new: Delivery) -> None:
        """Record owed events, in the transaction that makes them true."""
        if new:
            self._connection.execute(insert(delivery), [_values(each) for each in new])

    def due(
        self,
        now: datetime,
        limit: int,
        *,
        except_tenants: Collection[str] = (),
        except_destinations: Collection[tuple[str, str]] = (),
        of_progress: bool = False,
    ) -> Sequence[Delivery]:
        """Due deliveries, of progress or of all else, but not of these tenants and (tenant, URL) pairs: each
        tenant's longest waiting, then each one's second, and so on, so that no tenant hides another's. Within
        a tenant each URL's first comes before any one's second, and events not tried yet before those that
        failed.
        """
        in_line = (delivery.c.attempts > 0, delivery.c.next_at, delivery.c.id)
        of_url = func.row_number().over(partition_by=(delivery.c.tenant_id, delivery.c.url), order_by=in_line)
        waiting = (
            select(delivery.c.id, of_url.label("url_turn"))
            .where(
                delivery.c.state == DeliveryState.PENDING,
                delivery.c.next_at <= now,
                delivery.c.event_type == PROGRESS if of_progress else delivery.c.event_type != PROGRESS,
                delivery.c.tenant_id.not_in(except_tenants),
                tuple_(delivery.c.tenant_id, delivery.c.url).not_in(list(except_destinations)),
            )
            .subquery()
        )
        of_tenant = func.row_number().over(
            partition_by=delivery.c.tenant_id, order_by=(waiting.c.url_turn, *in_line)
        )
        found = (
            select(delivery, of_tenant.label("turn")).join(waiting, waiting.c.id == delivery.c.id).subquery()
        )
        rows = self._connection.execute(
            select(found).order_by(found.c.turn, found.c.next_at, found.c.id).limit(limit)
        )
        return [_to_delivery(row) for row in rows]

    def reserve(self, found: Delivery, until: datetime) -> bool:
        """Reserve a due delivery for one attempt. False: another sender has it. After a crash it is due at
        `until`.
        """
        return (
            self._connection.execute(
                update(delivery)
                .where(
                    delivery.c.id == found.id,
                    delivery.c.state == DeliveryState.PENDING,
                    delivery.c.attempts == found.attempts,
                    delivery.c.next_at == found.next_at,
                )
                .values(next_at=until)
            ).rowcount
            == 1
        )

    def record(self, of: Delivery, made: DeliveryAttempt, state: DeliveryState, next_at: datetime) -> bool:
        """Record an attempt and its consequence. False: already recorded."""
        recorded = self._connection.execute(
            update(delivery)
            .where(
                delivery.c.id == of.id,
                delivery.c.state == DeliveryState.PENDING,
                delivery.c.attempts == of.attempts,
            )
            .values(
                state=state,
                attempts=made.attempt_no,
                next_at=next_at,
                delivered_at=made.started_at if state is DeliveryState.DELIVERED else None,
            )
        )
        if recorded.rowcount == 0:
            return False
        self._connection.execute(
            insert(attempt).values(
                delivery_id=of.id,
                attempt_no=made.attempt_no,
                started_at=made.started_at,
                latency_ms=made.latency_ms,
                status_code=made.status_code,
                error=made.error,
                response_head=made.response_head,
                retry_after_s=made.retry_after_s,
            )
        )
        return True

    def newest(self, job_id: str, event_type: str) -> Delivery | None:
        """A job's newest of this type, of all receivers'."""
        row = self._connection.execute(
            select(delivery)
            .where(delivery.c.job_id == job_id, delivery.c.event_type == event_type)
            .order_by(delivery.c.created_at.desc(), delivery.c.id.desc())
            .limit(1)
        ).one_or_none()
        return _to_delivery(row) if row else None

    def drop_owed(self, job_id: str, event_type: str) -> int:
        """Forget a job's deliveries of this type that are still owed, with their attempts. How many. An
        attempt under way is then not recorded.
        """
        owed = (
            delivery.c.job_id == job_id,
            delivery.c.event_type == event_type,
            delivery.c.state == DeliveryState.PENDING,
        )
        ids = list(self._connection.execute(select(delivery.c.id).where(*owed).with_for_update()).scalars())
        if not ids:
            return 0
        self._connection.execute(delete(attempt).where(attempt.c.delivery_id.in_(ids)))
        return self._connection.execute(delete(delivery).where(delivery.c.id.in_(ids))).rowcount

    def disable_endpoint(self, of: Delivery, now: datetime) -> None:
        """Record that the receiver wants no more events."""
        named = (gone.c.tenant_id == of.tenant_id, gone.c.url_sha256 == _digest(of.url))
        if self._connection.execute(update(gone).where(*named).values(gone_at=now)).rowcount:
            return
        try:
            with self._connection.begin_nested():
                self._connection.execute(
                    insert(gone).values(
                        tenant_id=of.tenant_id, url_sha256=_digest(of.url), url=of.url, gone_at=now
                    )
                )
        except IntegrityError:  # recorded by another delivery at the same time
            return

    def is_disabled(self, of: Delivery) -> bool:
        """Whether its receiver has refused events since the job was submitted, or the delivery replayed. A
        later job with the same URL is sent again.
        """
        found = self._connection.execute(
            select(gone.c.url_sha256)
            .join(tables.job, tables.job.c.id == of.job_id)
            .where(
                gone.c.tenant_id == of.tenant_id,
                gone.c.url_sha256 == _digest(of.url),
                gone.c.gone_at >= tables.job.c.created_at,
                *(() if of.replayed_at is None else (gone.c.gone_at > of.replayed_at,)),
            )
        )
        return found.one_or_none() is not None

    def get(self, tenant_id: str, delivery_id: str) -> Delivery | None:
        row = self._connection.execute(
            select(delivery).where(delivery.c.id == delivery_id, delivery.c.tenant_id == tenant_id)
        ).one_or_none()
        return _to_delivery(row) if row else None

    def give_up(self, tenant_id: str, endpoint_id: str, limit: int) -> int:
        """What is owed to an endpoint becomes dead letters, beyond `limit` at its turn. How many."""
        pending = delivery.c.state == DeliveryState.PENDING
        return self._change(tenant_id, endpoint_id, (pending,), limit, {"state": DeliveryState.DEAD})

    def redirect(self, tenant_id: str, endpoint_id: str, url: str) -> int:
        """What is owed to an endpoint goes to its new URL. How many."""
        owed = (
            delivery.c.tenant_id == tenant_id,
            delivery.c.endpoint_id == endpoint_id,
            delivery.c.state == DeliveryState.PENDING,
        )
        return self._connection.execute(update(delivery).where(*owed).values(url=url)).rowcount

    def replay(self, of: Delivery, url: str, now: datetime) -> bool:
        """Owe it once more, under the same event id. False: it is owed, or was replayed meanwhile."""
        replayed = self._connection.execute(
            update(delivery)
            .where(
                delivery.c.id == of.id,
                delivery.c.tenant_id == of.tenant_id,
                delivery.c.state != DeliveryState.PENDING,
            )
            .values(_replayed(url, now))
        )
        return replayed.rowcount == 1

    def replay_dead(
        self,
        tenant_id: str,
        endpoint_id: str,
        url: str,
        now: datetime,
        *,
        since: datetime,
        until: datetime,
        limit: int,
    ) -> int:
        """Owe an endpoint its dead letters of events in [since, until) once more, oldest first. How many."""
        return self._change(tenant_id, endpoint_id, _dead(since, until), limit, _replayed(url, now))

    def has_dead(self, tenant_id: str, endpoint_id: str, *, since: datetime, until: datetime) -> bool:
        """Whether an endpoint has dead letters of events in [since, until)."""
        wanted = exists().where(
            delivery.c.tenant_id == tenant_id, delivery.c.endpoint_id == endpoint_id, *_dead(since, until)
        )
        return bool(self._connection.execute(select(wanted)).scalar_one())

    def _change(
        self,
        tenant_id: str,
        endpoint_id: str,
        wanted: Sequence[ColumnElement[bool]],
        limit: int,
        values: dict[str, Any],
    ) -> int:
        """Change an endpoint's oldest deliveries of those wanted. How many."""
        oldest = (
            select(delivery.c.id)
            .where(delivery.c.tenant_id == tenant_id, delivery.c.endpoint_id == endpoint_id, *wanted)
            .order_by(delivery.c.created_at, delivery.c.id)
            .limit(limit)
        )
        changed = update(delivery).where(delivery.c.id.in_(oldest), *wanted).values(values)
        return self._connection.execute(changed).rowcount

    def list(
        self,
        tenant_id: str,
        *,
        limit: int,
        after: Delivery | None = None,
        filters: DeliveryFilters = ANY_DELIVERY,
    ) -> Sequence[Delivery]:
        """Newest first. `after`: the last delivery of the previous page."""
        rows = self._connection.execute(listing(tenant_id, limit, after, filters))
        return [_to_delivery(row) for row in rows]

    def attempts(self, tenant_id: str, delivery_id: str) -> Sequence[DeliveryAttempt]:
        """A tenant's delivery's attempts, in order."""
        wanted = _attempts(tenant_id, delivery_id).order_by(attempt.c.attempt_no)
        return [_to_attempt(row) for row in self._connection.execute(wanted)]

    def last_attempts(self, tenant_id: str, delivery_id: str, limit: int) -> Sequence[DeliveryAttempt]:
        """A tenant's delivery's last attempts, the latest first."""
        wanted = _attempts(tenant_id, delivery_id).order_by(attempt.c.attempt_no.desc()).limit(limit)
        return [_to_attempt(row) for row in self._connection.execute(wanted)]

    def owed(self) -> Owed:
        """Over all tenants, for metrics; of an index only."""
        made_at = func.min(delivery.c.created_at)
        rows = self._connection.execute(
            select(delivery.c.state, func.count(), made_at)
            .where(delivery.c.state.in_((DeliveryState.PENDING, DeliveryState.DEAD)))
            .group_by(delivery.c.state)
        )
        found = {DeliveryState(state): (count, at) for state, count, at in rows}
        pending, oldest_at = found.get(DeliveryState.PENDING, (0, None))
        dead, _ = found.get(DeliveryState.DEAD, (0, None))
        return Owed(pending, dead, oldest_at)


def _attempts(tenant_id: str, delivery_id: str) -> Select[tuple[Any, ...]]:
    return (
        select(attempt)
        .join(delivery, delivery.c.id == attempt.c.delivery_id)
        .where(attempt.c.delivery_id == delivery_id, delivery.c.tenant_id == tenant_id)
    )


def _to_attempt(row: Row[Any]) -> DeliveryAttempt:
    return DeliveryAttempt(
        attempt_no=row.attempt_no,
        started_at=row.started_at,
        latency_ms=row.latency_ms,
        status_code=row.status_code,
        error=row.error,
        response_head=row.response_head,
        retry_after_s=row.retry_after_s,
    )


def _digest(url: str) -> str:
    """A URL may be too long for a key."""
    return hashlib.sha256(url.encode()).hexdigest()


def _dead(since: datetime, until: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        delivery.c.state == DeliveryState.DEAD,
        delivery.c.created_at >= since,
        delivery.c.created_at < until,
    )


def _replayed(url: str, now: datetime) -> dict[str, Any]:
    """The values of a delivery that is owed once more, with a schedule from its beginning."""
    return {
        "state": DeliveryState.PENDING,
        "url": url,
        "next_at": now,
        "replayed_at": now,
        "attempts_before": delivery.c.attempts,
        "delivered_at": None,
    }


def _values(new: Delivery) -> dict[str, Any]:
    return {
        "id": new.id,
        "event_id": new.event_id,
        "tenant_id": new.tenant_id,
        "job_id": new.job_id,
        "endpoint_id": new.endpoint_id,
        "event_type": new.event_type,
        "url": new.url,
        "body": new.body,
        "state": new.state,
        "attempts": new.attempts,
        "next_at": new.next_at,
        "created_at": new.created_at,
    }


def _to_delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.id,
        event_id=row.event_id,
        tenant_id=row.tenant_id,
        job_id=row.job_id,
        event_type=row.event_type,
        url=row.url,
        body=row.body,
        state=DeliveryState(row.state),
        attempts=row.attempts,
        next_at=row.next_at,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        endpoint_id=row.endpoint_id,
        attempts_before=row.attempts_before,
        replayed_at=row.replayed_at,
    )
