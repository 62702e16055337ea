"""Makes one attempt to deliver an event: signs, sends and records it, and decides what follows."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol
from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind

from nightshift.lifecycle.webhooks.endpoints import note_attempt
from nightshift.lifecycle.webhooks.tenant_secrets import kept_webhook_secret
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
from nightshift.process import failpoints
from nightshift.process.tracing.attributes import (
    ATTEMPT,
    EVENT,
    EVENT_TYPE,
    HTTP_METHOD,
    HTTP_STATUS,
    JOB,
    SERVER_ADDRESS,
    TENANT,
)
from nightshift.process.tracing.spans import NO_SPAN, Value, end, follow, is_on, lasting
from nightshift.store import Store
from nightshift.tenants.audit import Actor
from nightshift.tenants.vault import Vault
from scheduler.webhooks.in_flight import AttemptOutcome, webhook_destination

log = logging.getLogger(__name__)

TOO_MANY_REQUESTS: Final = 429
ENDPOINT_GONE: Final = "not sent: the URL has answered 410 Gone since this job was submitted"
ENDPOINT_DISABLED: Final = "not sent: the webhook endpoint is disabled or was deleted"


class Poster(Protocol):
    """The part of `Egress` that an attempt needs."""

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse: ...


@dataclass(frozen=True)
class FollowUp:
    """A delivery's state after an attempt, and when it is due."""

    state: DeliveryState
    next_at: datetime


@dataclass(frozen=True)
class Sent:
    """An attempt as it went. `is_final`: no other can go better."""

    made: DeliveryAttempt
    is_final: bool


class WebhookAttempts:
    """Thread-safe."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        egress: Poster,
        jitter: Callable[[], float],
    ) -> None:
        self._store = store
        self._vault = vault
        self._egress = egress
        self._jitter = jitter

    def make(self, delivery: Delivery) -> AttemptOutcome | None:
        """Makes the next attempt. None: another scheduler recorded it first."""
        span = self._span(delivery)
        with lasting(span):
            return self._make(delivery, span)

    def _span(self, delivery: Delivery) -> Span:
        if not is_on():
            return NO_SPAN
        with self._store.snapshot() as tx:
            traceparent = tx.jobs.traceparent(delivery.job_id)
        return follow(traceparent, "webhook", kind=SpanKind.CLIENT)

    def _make(self, delivery: Delivery, span: Span) -> AttemptOutcome | None:
        started_at = self._store.now()
        destination = webhook_destination(delivery)
        if delivery.endpoint_id is None:
            sent = self._to_own_url(delivery, started_at)
        else:
            delivery, sent = self._to_endpoint(delivery, delivery.endpoint_id, started_at)
        failpoints.hit("scheduler.webhook_sent")
        ended_at = self._store.now()
        next_step = follow_up(sent, delivery.attempts_before, ended_at, self._jitter())
        if not self._record(delivery, sent, next_step):
            return None
        log.info(
            "webhook attempted",
            extra=fields(delivery, "webhook_attempted")
            | {"status": sent.made.status_code, "error": sent.made.error, "state": next_step.state},
        )
        _end_span(span, delivery, sent.made)
        answered = None if sent.is_final else is_answer(sent.made)
        return AttemptOutcome(destination, next_step.state, answered, ended_at, sent.made.latency_ms / 1000)

    def _to_own_url(self, delivery: Delivery, at: datetime) -> Sent:
        with self._store.snapshot() as tx:
            is_disabled = tx.deliveries.is_disabled(delivery)
        if is_disabled:
            return not_sent(delivery, at, ENDPOINT_GONE)
        return self._send(delivery, [self._secret(delivery)], at)

    def _to_endpoint(self, delivery: Delivery, endpoint_id: str, at: datetime) -> tuple[Delivery, Sent]:
        """Sends to the endpoint's present URL."""
        with self._store.snapshot() as tx:
            endpoint = tx.webhook_endpoints.get(delivery.tenant_id, endpoint_id)
        if endpoint is None or not endpoint.is_enabled:
            return delivery, not_sent(delivery, at, ENDPOINT_DISABLED)
        there = replace(delivery, url=endpoint.url)
        secrets = [self._vault.decrypt(secret) for secret in endpoint.secrets(at)]
        return there, self._send(there, secrets, at)

    def _send(self, delivery: Delivery, secrets: Sequence[str], started_at: datetime) -> Sent:
        signed = headers(delivery.event_id, int(started_at.timestamp()), delivery.body, secrets)
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
        return Sent(made, is_blocked)

    def _record(self, delivery: Delivery, sent: Sent, next_step: FollowUp) -> bool:
        with self._store.transaction() as tx:
            if delivery.endpoint_id is not None:
                # Locked before the delivery, as where an endpoint is changed: no two wait for each other.
                tx.webhook_endpoints.lock(delivery.tenant_id, delivery.endpoint_id)
            if not tx.deliveries.record(delivery, sent.made, next_step.state, next_step.next_at):
                return False
            if delivery.endpoint_id is not None:
                note_attempt(tx, delivery, sent.made, tx.now())
            elif sent.made.status_code == GONE:
                tx.deliveries.disable_endpoint(delivery, tx.now())
            return True

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


def _end_span(span: Span, delivery: Delivery, made: DeliveryAttempt) -> None:
    """Ends the span. It has only the host of the URL: the rest may be a secret."""
    if span is NO_SPAN:
        return
    url = urlsplit(delivery.url)
    about: dict[str, Value] = {
        JOB: delivery.job_id,
        TENANT: delivery.tenant_id,
        EVENT: delivery.event_id,
        EVENT_TYPE: delivery.event_type,
        ATTEMPT: made.attempt_no,
        HTTP_METHOD: "POST",
        SERVER_ADDRESS: url.hostname or "",
    }
    if made.status_code is not None:
        about[HTTP_STATUS] = made.status_code
    end(span, about, error=None if made.delivered else str(made.status_code or "no_answer"))


def not_sent(delivery: Delivery, at: datetime, why: str) -> Sent:
    """The record of an attempt not made, because its receiver is disabled."""
    made = DeliveryAttempt(
        attempt_no=delivery.attempts + 1,
        started_at=at,
        latency_ms=0,
        status_code=None,
        error=why,
        response_head=None,
        retry_after_s=None,
    )
    return Sent(made, is_final=True)


def is_answer(made: DeliveryAttempt) -> bool:
    """Whether the receiver was there: a 4xx is about the event, a 5xx or 429 about the receiver. Pure."""
    return made.status_code is not None and made.status_code < 500 and made.status_code != TOO_MANY_REQUESTS


def follow_up(sent: Sent, attempts_before: int, now: datetime, jitter: float) -> FollowUp:
    """`attempts_before`: those before the last replay. `jitter` is random, in [0, 1). Pure."""
    if sent.made.delivered:
        return FollowUp(DeliveryState.DELIVERED, now)
    delay_s = None
    if not sent.is_final:
        delay_s = retry_delay_s(sent.made, jitter, attempts_before=attempts_before)
    if delay_s is None:
        return FollowUp(DeliveryState.DEAD, now)
    return FollowUp(DeliveryState.PENDING, now + timedelta(seconds=delay_s))


def retry_after_s(headers: Mapping[str, str], now: datetime) -> int | None:
    """Seconds from now until the receiver wants another attempt. None: it does not say, or not readably."""
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


def fields(delivery: Delivery, action: str) -> dict[str, object]:
    """Fields of a log entry."""
    return {
        "action": action,
        "delivery": delivery.id,
        "job": delivery.job_id,
        "tenant": delivery.tenant_id,
        "attempt": delivery.attempts + 1,
    }


def _head(body: bytes) -> str:
    """The beginning of an answer as text. PostgreSQL stores no NUL character."""
    return body.decode("utf-8", errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")[
        :RESPONSE_HEAD_CHARS
    ]
