"""Deliver the events owed to webhook endpoints, at least once under one id, and record every attempt.

A pass only starts attempts, each in its own thread. Limits per tenant and per destination keep slow receivers
from delaying others, and one that keeps failing is left alone for a while (`runtime/circuits.py`): what is
owed to it waits, and that is no attempt. A delivery is reserved first: if this process dies, it is due again
later. An endpoint that answers 410 is disabled: what its tenant's jobs still owe it is recorded as dead, not
sent.
"""

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from nightshift.tenants.audit import Actor
from nightshift.tenants.vault import Vault
from scheduler.runtime.circuits import CircuitConfig, Circuits
from scheduler.runtime.duty import Result
from scheduler.runtime.in_flight import InFlightLimiter, Outcome, SlotLimits, destination_of

log = logging.getLogger(__name__)

TOO_MANY_REQUESTS: Final = 429
ENDPOINT_DISABLED: Final = "not sent: the endpoint has answered 410 Gone since this job was submitted"


class Poster(Protocol):
    """What this duty needs of `Egress`."""

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse: ...


@dataclass(frozen=True)
class WebhookDeliveryConfig:
    interval_s: float = 0.1  # between passes: most of an event's wait for its first attempt
    slots: SlotLimits = field(default_factory=SlotLimits)
    circuits: CircuitConfig = field(default_factory=CircuitConfig)
    reserved_s: float = 60.0  # a delivery whose scheduler died is due again after this long


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
        self._in_flight = InFlightLimiter(config.slots)
        self._circuits = Circuits(config.circuits)
        self.interval_s = config.interval_s
        self.wait_until_idle = self._in_flight.wait_until_idle

    def run_once(self, now: datetime) -> Delivered:
        """Start the due attempts that the limits allow.

        Raises RuntimeError if no thread can be started; what was not started is due again later.
        """
        ended = self._in_flight.take_outcomes()
        for outcome in ended:
            if outcome.answered is not None:
                self._circuits.record(outcome.destination, outcome.ended_at, answered=outcome.answered)
        if self._in_flight.is_full:
            return _counted(ended, started=0)
        due = self._due(now)
        self._postpone(due, now)
        reserved = self._reserve([found for found in due if self._may_start(found, now)], now)
        self._start_attempts(reserved)
        # A page full of one tenant's deliveries hides the others' only until that tenant is at its limit.
        return _counted(
            ended, started=len(reserved), has_more=bool(reserved) and len(due) >= self._config.slots.in_all
        )

    def _due(self, now: datetime) -> Sequence[Delivery]:
        busy = [at for at in self._in_flight.destinations() if not self._circuits.answers(at)]
        with self._store.snapshot() as tx:
            return tx.deliveries.due(
                now,
                self._config.slots.in_all,
                except_tenants=self._in_flight.full_tenants(),
                except_destinations=busy,
            )

    def _may_start(self, found: Delivery, now: datetime) -> bool:
        destination = destination_of(found)
        if self._circuits.open_until(destination, now) is not None:
            return False
        return self._in_flight.acquire(found, answers=self._circuits.answers(destination))

    def _postpone(self, due: Sequence[Delivery], now: datetime) -> None:
        """What is owed to open circuits is due when they may be tried again, and hides nothing until then."""
        times = ((found, self._circuits.open_until(destination_of(found), now)) for found in due)
        postponed = [(found, until) for found, until in times if until is not None]
        if postponed:
            with self._store.transaction() as tx:
                for found, until in postponed:
                    tx.deliveries.reserve(found, until)

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
        outcome: Outcome | None = None
        try:
            outcome = self._attempt(delivery)
        except Exception:  # our own failure is no attempt: the delivery is due again
            log.exception("delivery not attempted", extra=_fields(delivery, "delivery_trouble"))
        finally:
            self._in_flight.release(delivery, outcome)

    def _attempt(self, delivery: Delivery) -> Outcome | None:
        """Sign, send, record. None: another scheduler recorded this attempt first."""
        secret = self._secret(delivery)
        started_at = self._store.now()
        signed = headers(delivery.event_id, int(started_at.timestamp()), delivery.body, [secret])
        if self._is_disabled(delivery):
            made, is_blocked = _not_sent(delivery, started_at), True
        else:
            made, is_blocked = self._send(delivery, signed, started_at)
        failpoints.hit("scheduler.webhook_sent")
        ended_at = self._store.now()
        next_step = follow_up(made, is_blocked, ended_at, self._jitter())
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
        answered = None if is_blocked else is_answer(made)
        return Outcome(destination_of(delivery), next_step.state, answered, ended_at)

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
                encrypted = kept_webhook_secret(
                    tx, self._vault, delivery.tenant_id, Actor.of_service("scheduler")
                )
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


def is_answer(made: DeliveryAttempt) -> bool:
    """Whether the receiver was there: a 4xx is about the event, a 5xx or 429 about the receiver. Pure."""
    return made.status_code is not None and made.status_code < 500 and made.status_code != TOO_MANY_REQUESTS


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


def _counted(ended: Sequence[Outcome], *, started: int, has_more: bool = False) -> Delivered:
    states = Counter(outcome.state for outcome in ended)
    return Delivered(
        started=started,
        delivered=states[DeliveryState.DELIVERED],
        failed=states[DeliveryState.PENDING],
        dead=states[DeliveryState.DEAD],
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
