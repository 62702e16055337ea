"""Deliver the events owed to webhook endpoints, at least once under one id, and record every attempt.

A pass only starts attempts, each in its own thread; a limit per tenant keeps slow endpoints from delaying
other tenants'. A delivery is reserved first: if this process dies, it is due again later. An endpoint that
answers 410 is disabled: what its tenant's jobs still owe it is recorded as dead, not sent.
"""

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

from nightshift.lifecycle.webhook_secrets import kept_webhook_secret
from nightshift.outbound.safe_http import BlockedUrl, EgressResponse, NoAnswer
from nightshift.outbound.webhooks import (
    GONE,
    RESPONSE_HEAD_CHARS,
    Delivery,
    DeliveryAttempt,
    DeliveryState,
    headers,
    retry_delay_s,
)
from nightshift.processes import failpoints
from nightshift.store import Store
from nightshift.tenants.vault import Vault
from scheduler.runtime.duty import Result
from scheduler.runtime.in_flight import InFlightLimiter

log = logging.getLogger(__name__)

ENDPOINT_DISABLED: Final = "not sent: the endpoint has answered 410 Gone since this job was submitted"


class Poster(Protocol):
    """What this duty needs of `Egress`."""

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse: ...


@dataclass(frozen=True)
class WebhookDeliveryConfig:
    interval_s: float = 0.1  # between passes: most of an event's wait for its first attempt
    in_flight_max: int = 32  # attempts at once, each in a thread
    in_flight_per_tenant_max: int = 8  # of these, one tenant's
    reserved_s: float = 60.0  # a delivery whose scheduler died is due again after this long

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight_per_tenant_max <= self.in_flight_max:
            raise ValueError("webhooks need 1 <= in_flight_per_tenant_max <= in_flight_max")


@dataclass(frozen=True, kw_only=True)
class Delivered(Result):
    """What one pass started, and how attempts ended since the pass before."""

    started: int = 0
    delivered: int = 0
    failed: int = 0  # to be tried again
    dead: int = 0


@dataclass(frozen=True)
class FollowUp:
    """What becomes of a delivery after an attempt."""

    state: DeliveryState
    next_at: datetime


class WebhookDelivery:
    name = "webhook_delivery"

    def __init__(
        self,
        store: Store,
        vault: Vault,
        egress: Poster,
        config: WebhookDeliveryConfig = WebhookDeliveryConfig(),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._vault = vault
        self._egress = egress
        self._config = config
        self._jitter = jitter
        self._in_flight = InFlightLimiter(config.in_flight_max, config.in_flight_per_tenant_max)
        self.interval_s = config.interval_s
        self.wait_until_idle = self._in_flight.wait_until_idle

    def run_once(self, now: datetime) -> Delivered:
        """Start the due attempts that the limits allow.

        Raises RuntimeError if no thread can be started; what was not started is due again later.
        """
        ended = self._in_flight.take_outcomes()
        if self._in_flight.is_full:
            return _counted(ended, started=0)
        with self._store.snapshot() as tx:
            due = tx.deliveries.due(
                now, self._config.in_flight_max, except_tenants=self._in_flight.full_tenants()
            )
        reserved = self._reserve([found for found in due if self._in_flight.acquire(found)], now)
        self._start_attempts(reserved)
        # A page full of one tenant's deliveries hides the others' only until that tenant is at its limit.
        return _counted(
            ended, started=len(reserved), has_more=bool(reserved) and len(due) >= self._config.in_flight_max
        )

    def _reserve(self, admitted: Sequence[Delivery], now: datetime) -> Sequence[Delivery]:
        if not admitted:
            return ()
        until = now + timedelta(seconds=self._config.reserved_s)
        reserved: list[Delivery] = []
        try:
            with self._store.transaction() as tx:
                reserved = [found for found in admitted if tx.deliveries.reserve(found, until)]
        finally:
            for found in admitted:
                if found not in reserved:
                    self._in_flight.release(found, None)
        return reserved

    def _start_attempts(self, reserved: Sequence[Delivery]) -> None:
        waiting = deque(reserved)
        try:
            while waiting:
                delivery = waiting[0]
                threading.Thread(
                    target=self._run_attempt, args=(delivery,), name=delivery.id, daemon=True
                ).start()
                waiting.popleft()
        finally:
            for delivery in waiting:
                self._in_flight.release(delivery, None)

    def _run_attempt(self, delivery: Delivery) -> None:
        state: DeliveryState | None = None
        try:
            state = self._attempt(delivery)
        except Exception:  # our own failure is no attempt: the delivery is due again
            log.exception("delivery not attempted", extra=_fields(delivery, "delivery_trouble"))
        finally:
            self._in_flight.release(delivery, state)

    def _attempt(self, delivery: Delivery) -> DeliveryState | None:
        """Sign, send, record. None: another scheduler recorded this attempt first."""
        secret = self._secret(delivery)
        started_at = self._store.now()
        signed = headers(delivery.event_id, int(started_at.timestamp()), delivery.body, [secret])
        if self._is_disabled(delivery):
            made, is_blocked = _not_sent(delivery, started_at), True
        else:
            made, is_blocked = self._send(delivery, signed, started_at)
        failpoints.hit("scheduler.webhook_sent")
        next_step = follow_up(made, is_blocked, self._store.now(), self._jitter())
        with self._store.transaction() as tx:
            if not tx.deliveries.record(delivery, made, next_step.state, next_step.next_at):
                return None
            if made.status_code == GONE:
                tx.deliveries.disable_endpoint(delivery, tx.now())
        log.info(
            "webhook attempted",
            extra=_fields(delivery, "webhook_attempted")
            | {"status": made.status_code, "error": made.error, "state": next_step.state},
        )
        return next_step.state

    def _send(
        self, delivery: Delivery, signed: Mapping[str, str], started_at: datetime
    ) -> tuple[DeliveryAttempt, bool]:
        """The attempt as it went, and whether the URL may not be called at all."""
        began_s = time.monotonic()
        answer: EgressResponse | None = None
        error: str | None = None
        is_blocked = False
        try:
            answer = self._egress.post(delivery.url, delivery.body.encode(), signed)
        except BlockedUrl as blocked:
            error, is_blocked = blocked.message, True
        except NoAnswer as silence:
            error = silence.message
        made = DeliveryAttempt(
            attempt_no=delivery.attempts + 1,
            started_at=started_at,
            latency_ms=round((time.monotonic() - began_s) * 1000),
            status_code=answer.status if answer else None,
            error=error,
            response_head=_head(answer.head) if answer else None,
            retry_after_s=retry_after_s(answer.headers, started_at) if answer else None,
        )
        return made, is_blocked

    def _is_disabled(self, delivery: Delivery) -> bool:
        with self._store.snapshot() as tx:
            return tx.deliveries.is_disabled(delivery)

    def _secret(self, delivery: Delivery) -> str:
        """The job's own signing secret, else its tenant's, made when it is first needed."""
        with self._store.snapshot() as tx:
            own = tx.jobs.webhook_secret(delivery.job_id)
            encrypted = own or tx.keys.webhook_secret(delivery.tenant_id)
        if encrypted is None:
            with self._store.transaction() as tx:
                encrypted = kept_webhook_secret(tx, self._vault, delivery.tenant_id)
        return self._vault.decrypt(encrypted)


def _not_sent(delivery: Delivery, at: datetime) -> DeliveryAttempt:
    """The record of an attempt not made, because the endpoint is disabled."""
    return DeliveryAttempt(
        attempt_no=delivery.attempts + 1,
        started_at=at,
        latency_ms=0,
        status_code=None,
        error=ENDPOINT_DISABLED,
        response_head=None,
        retry_after_s=None,
    )


def follow_up(made: DeliveryAttempt, is_blocked: bool, now: datetime, jitter: float) -> FollowUp:
    """`jitter` is random, in [0, 1). Pure."""
    if made.delivered:
        return FollowUp(DeliveryState.DELIVERED, now)
    delay_s = None if is_blocked else retry_delay_s(made, jitter)
    if delay_s is None:
        return FollowUp(DeliveryState.DEAD, now)
    return FollowUp(DeliveryState.PENDING, now + timedelta(seconds=delay_s))


def retry_after_s(headers: Mapping[str, str], now: datetime) -> int | None:
    """What the receiver asks for, in seconds from now. None: nothing, or nothing readable."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) <= _DIGITS_MAX:
        return int(value)
    try:
        at = parsedate_to_datetime(value)
        asked_s = round((at - now).total_seconds())
    except (ValueError, OverflowError, TypeError):  # TypeError: a date without a time zone
        return None
    return max(0, asked_s) if asked_s < 10**_DIGITS_MAX else None


_DIGITS_MAX: Final = 9  # a larger number of seconds is a mistake, and more than the column holds


def _counted(ended: "Counter[DeliveryState]", *, started: int, has_more: bool = False) -> Delivered:
    return Delivered(
        started=started,
        delivered=ended[DeliveryState.DELIVERED],
        failed=ended[DeliveryState.PENDING],
        dead=ended[DeliveryState.DEAD],
        has_more=has_more,
    )


def _head(body: bytes) -> str:
    """The beginning of an answer as text. PostgreSQL stores no NUL character."""
    return body.decode("utf-8", errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")[
        :RESPONSE_HEAD_CHARS
    ]


def _fields(delivery: Delivery, action: str) -> dict[str, object]:
    return {
        "action": action,
        "delivery": delivery.id,
        "job": delivery.job_id,
        "tenant": delivery.tenant_id,
        "attempt": delivery.attempts + 1,
    }
