"""Statements about webhook deliveries and their attempts."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)

from nightshift.outbound.webhook_events import PROGRESS
from nightshift.outbound.webhooks import Delivery, DeliveryAttempt, DeliveryState
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position

delivery = tables.delivery


@dataclass(frozen=True, kw_only=True)
class DeliveryFilters:
    """Filters of a list of deliveries. None: any."""

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
    order = (delivery.c.created_at, delivery.c.id)
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
        wanted = wanted.where(tuple_(*order) < position(order, (after.created_at, after.id)))
    return wanted.order_by(*(column.desc() for column in order)).limit(limit)


attempt = tables.delivery_attempt
gone = tables.gone_endpoint


@dataclass(frozen=True)
class Owed:
    pending: int
    dead: int  # given up
    oldest_at: datetime | None  # creation of the oldest pending one


class Deliveries(Statements):
    def insert(self, *new: Delivery) -> None:
        """Records owed events, in the transaction that makes them true."""
        if new:
            self._execute(insert(delivery), [vars(delivery) for delivery in new])

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
        ranked = (
            select(delivery, of_tenant.label("turn")).join(waiting, waiting.c.id == delivery.c.id).subquery()
        )
        return self._all(
            select(ranked).order_by(ranked.c.turn, ranked.c.next_at, ranked.c.id).limit(limit), _to_delivery
        )

    def reserve(self, due: Delivery, until: datetime) -> bool:
        """Reserves a due delivery for one attempt. False: another sender has it. After a crash it is due at
        `until`.
        """
        return self._changes_one(
            update(delivery)
            .where(
                delivery.c.id == due.id,
                delivery.c.state == DeliveryState.PENDING,
                delivery.c.attempts == due.attempts,
                delivery.c.next_at == due.next_at,
            )
            .values(next_at=until)
        )

    def record(self, owed: Delivery, made: DeliveryAttempt, state: DeliveryState, next_at: datetime) -> bool:
        """Records an attempt and its consequence. False: already recorded."""
        if not self._changes_one(
            update(delivery)
            .where(
                delivery.c.id == owed.id,
                delivery.c.state == DeliveryState.PENDING,
                delivery.c.attempts == owed.attempts,
            )
            .values(
                state=state,
                attempts=made.attempt_no,
                next_at=next_at,
                delivered_at=made.started_at if state is DeliveryState.DELIVERED else None,
            )
        ):
            return False
        self._execute(insert(attempt).values(vars(made) | {"delivery_id": owed.id}))
        return True

    def newest(self, job_id: str, event_type: str) -> Delivery | None:
        """A job's newest of this type, of all receivers'."""
        return self._one(
            select(delivery)
            .where(delivery.c.job_id == job_id, delivery.c.event_type == event_type)
            .order_by(delivery.c.created_at.desc(), delivery.c.id.desc())
            .limit(1),
            _to_delivery,
        )

    def drop_owed(self, job_id: str, event_type: str) -> int:
        """Forgets a job's deliveries of this type that are still owed, with their attempts. Returns their
        number. An attempt under way is then not recorded.
        """
        owed = (
            delivery.c.job_id == job_id,
            delivery.c.event_type == event_type,
            delivery.c.state == DeliveryState.PENDING,
        )
        ids = list(self._execute(select(delivery.c.id).where(*owed).with_for_update()).scalars())
        if not ids:
            return 0
        self._execute(delete(attempt).where(attempt.c.delivery_id.in_(ids)))
        return self._execute(delete(delivery).where(delivery.c.id.in_(ids))).rowcount

    def disable_endpoint(self, owed: Delivery, now: datetime) -> None:
        """Records that the receiver wants no more events."""
        named = (gone.c.tenant_id == owed.tenant_id, gone.c.url_sha256 == _digest(owed.url))
        if self._changes_one(update(gone).where(*named).values(gone_at=now)):
            return
        # Unless another delivery has recorded it at the same time.
        self._inserts(
            insert(gone).values(
                tenant_id=owed.tenant_id, url_sha256=_digest(owed.url), url=owed.url, gone_at=now
            )
        )

    def is_disabled(self, owed: Delivery) -> bool:
        """Whether its receiver has refused events since the job was submitted, or the delivery replayed. A
        later job with the same URL is sent again.
        """
        refusal = self._execute(
            select(gone.c.url_sha256)
            .join(tables.job, tables.job.c.id == owed.job_id)
            .where(
                gone.c.tenant_id == owed.tenant_id,
                gone.c.url_sha256 == _digest(owed.url),
                gone.c.gone_at >= tables.job.c.created_at,
                *(() if owed.replayed_at is None else (gone.c.gone_at > owed.replayed_at,)),
            )
        )
        return refusal.one_or_none() is not None

    def get(self, tenant_id: str, delivery_id: str) -> Delivery | None:
        return self._one(
            select(delivery).where(delivery.c.id == delivery_id, delivery.c.tenant_id == tenant_id),
            _to_delivery,
        )

    def give_up(self, tenant_id: str, endpoint_id: str, limit: int) -> int:
        """Makes dead letters of what is owed to an endpoint, beyond `limit` at its turn. Returns their
        number.
        """
        pending = delivery.c.state == DeliveryState.PENDING
        return self._change(tenant_id, endpoint_id, (pending,), limit, {"state": DeliveryState.DEAD})

    def redirect(self, tenant_id: str, endpoint_id: str, url: str) -> int:
        """Sends what is owed to an endpoint to its new URL. Returns the number of deliveries."""
        owed = (
            delivery.c.tenant_id == tenant_id,
            delivery.c.endpoint_id == endpoint_id,
            delivery.c.state == DeliveryState.PENDING,
        )
        return self._execute(update(delivery).where(*owed).values(url=url)).rowcount

    def replay(self, ended: Delivery, url: str, now: datetime) -> bool:
        """Owes a delivery once more, under the same event id. False: it is owed, or was replayed
        meanwhile.
        """
        return self._changes_one(
            update(delivery)
            .where(
                delivery.c.id == ended.id,
                delivery.c.tenant_id == ended.tenant_id,
                delivery.c.state != DeliveryState.PENDING,
            )
            .values(_replayed(url, now))
        )

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
        """Owes an endpoint its dead letters of events in [since, until) once more, oldest first. Returns
        their number.
        """
        return self._change(tenant_id, endpoint_id, _dead(since, until), limit, _replayed(url, now))

    def has_dead(self, tenant_id: str, endpoint_id: str, *, since: datetime, until: datetime) -> bool:
        """Whether an endpoint has dead letters of events in [since, until)."""
        wanted = exists().where(
            delivery.c.tenant_id == tenant_id, delivery.c.endpoint_id == endpoint_id, *_dead(since, until)
        )
        return bool(self._execute(select(wanted)).scalar_one())

    def _change(
        self,
        tenant_id: str,
        endpoint_id: str,
        wanted: Sequence[ColumnElement[bool]],
        limit: int,
        values: dict[str, Any],
    ) -> int:
        """Changes an endpoint's oldest deliveries of those wanted. Returns their number."""
        oldest = (
            select(delivery.c.id)
            .where(delivery.c.tenant_id == tenant_id, delivery.c.endpoint_id == endpoint_id, *wanted)
            .order_by(delivery.c.created_at, delivery.c.id)
            .limit(limit)
        )
        changed = update(delivery).where(delivery.c.id.in_(oldest), *wanted).values(values)
        return self._execute(changed).rowcount

    def list(
        self,
        tenant_id: str,
        *,
        limit: int,
        after: Delivery | None = None,
        filters: DeliveryFilters = ANY_DELIVERY,
    ) -> Sequence[Delivery]:
        """Newest first. `after`: the last delivery of the previous page."""
        return self._all(listing(tenant_id, limit, after, filters), _to_delivery)

    def attempts(self, tenant_id: str, delivery_id: str) -> Sequence[DeliveryAttempt]:
        """A tenant's delivery's attempts, in order."""
        wanted = _attempts(tenant_id, delivery_id).order_by(attempt.c.attempt_no)
        return self._all(wanted, _to_attempt)

    def last_attempts(self, tenant_id: str, delivery_id: str, limit: int) -> Sequence[DeliveryAttempt]:
        """A tenant's delivery's last attempts, the latest first."""
        wanted = _attempts(tenant_id, delivery_id).order_by(attempt.c.attempt_no.desc()).limit(limit)
        return self._all(wanted, _to_attempt)

    def owed(self) -> Owed:
        """Over all tenants, for metrics; of an index only."""
        made_at = func.min(delivery.c.created_at)
        rows = self._execute(
            select(delivery.c.state, func.count(), made_at)
            .where(delivery.c.state.in_((DeliveryState.PENDING, DeliveryState.DEAD)))
            .group_by(delivery.c.state)
        )
        by_state = {DeliveryState(state): (count, at) for state, count, at in rows}
        pending, oldest_at = by_state.get(DeliveryState.PENDING, (0, None))
        dead, _ = by_state.get(DeliveryState.DEAD, (0, None))
        return Owed(pending, dead, oldest_at)


def _attempts(tenant_id: str, delivery_id: str) -> Select[tuple[Any, ...]]:
    return (
        select(attempt)
        .join(delivery, delivery.c.id == attempt.c.delivery_id)
        .where(attempt.c.delivery_id == delivery_id, delivery.c.tenant_id == tenant_id)
    )


def _to_attempt(row: Row[Any]) -> DeliveryAttempt:
    return from_row(DeliveryAttempt, row)


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


def _to_delivery(row: Row[Any]) -> Delivery:
    return from_row(Delivery, row, state=DeliveryState(row.state))
