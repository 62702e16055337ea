"""Deliveries of webhook events: their attempts, signatures and retry delays.

Signatures follow Standard Webhooks 1.0.0 (standard-webhooks/standard-webhooks, spec/standard-webhooks.md):
HMAC-SHA256 over `{id}.{timestamp}.{body}`, base64, in `webhook-signature` as `v1,…`, separated by spaces.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32  # the specification allows 24 to 64
SECRET_BYTES_ALLOWED: Final = range(24, 65)

# Seconds after the previous attempt, beginning with the first. About 75.6 hours in all.
RETRY_DELAYS_S: Final = (0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
ATTEMPTS_MAX: Final = len(RETRY_DELAYS_S)
JITTER: Final = 0.1  # share of the delay, to spread retries to a recovered endpoint
RETRY_AFTER_MAX_S: Final = 86400
RESPONSE_HEAD_CHARS: Final = 2048  # kept of the receiver's answer, with the attempt

GONE: Final = 410  # the receiver wants no more events
TOLERANCE_S: Final = 300


class DeliveryState(StrEnum):
    PENDING = "pending"  # due at `next_at`
    DELIVERED = "delivered"
    DEAD = "dead"  # attempts exhausted, refused for good, answered 410, or its endpoint is disabled


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An event owed to a job's own URL or to a webhook endpoint. Its body is fixed: the signed bytes are
    the ones sent.
    """

    id: str
    event_id: str  # `evt_…`: the receiver's idempotency key, the same at every attempt
    tenant_id: str
    job_id: str
    event_type: str
    url: str
    body: str
    state: DeliveryState
    attempts: int
    next_at: datetime
    created_at: datetime
    delivered_at: datetime | None = None
    endpoint_id: str | None = None  # None: owed to the job's own URL
    attempts_before: int = 0  # attempts before the last replay
    replayed_at: datetime | None = None  # last


@dataclass(frozen=True, kw_only=True)
class DeliveryAttempt:
    attempt_no: int  # 1, 2, 3 …
    started_at: datetime
    latency_ms: int
    status_code: int | None  # None: no answer
    error: str | None
    response_head: str | None
    retry_after_s: int | None = None

    @property
    def delivered(self) -> bool:
        return self.status_code is not None and is_taken(self.status_code)


def is_taken(status_code: int) -> bool:
    """Whether a receiver with this answer has taken the event. No redirect is followed."""
    return 200 <= status_code < 300


class InvalidSecret(ValueError):
    """A webhook secret is `whsec_` and 24 to 64 random bytes in base64."""


class InvalidSignature(ValueError):
    """The webhook's signature does not match its body, or its timestamp is too old."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def secret_key(secret: str) -> bytes:
    """The key in a `whsec_…` secret. Raises InvalidSecret."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError as error:
        raise InvalidSecret(InvalidSecret.__doc__) from error
    if not secret.startswith(SECRET_PREFIX) or len(key) not in SECRET_BYTES_ALLOWED:
        raise InvalidSecret(InvalidSecret.__doc__)
    return key


def signature(secret: str, event_id: str, timestamp_s: int, body: str) -> str:
    signed = f"{event_id}.{timestamp_s}.{body}".encode()
    digest = hmac.new(secret_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def headers(event_id: str, timestamp_s: int, body: str, secrets: Sequence[str]) -> dict[str, str]:
    """The headers of one attempt. Several secrets (rotation) give several signatures."""
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signature(secret, event_id, timestamp_s, body) for secret in secrets),
    }


def verify(
    body: str, headers: dict[str, str], secret: str, now_s: int, tolerance_s: int = TOLERANCE_S
) -> None:
    """Verifies a webhook as a receiver does. `headers` are in lower case. Raises InvalidSignature."""
    try:
        event_id, given = headers["webhook-id"], headers["webhook-signature"].split()
        timestamp_s = int(headers["webhook-timestamp"])
    except (KeyError, ValueError) as error:
        raise InvalidSignature("a webhook header is missing or cannot be read") from error
    if abs(now_s - timestamp_s) > tolerance_s:
        raise InvalidSignature("the webhook's timestamp is outside the tolerance")
    expected = signature(secret, event_id, timestamp_s, body).encode()
    if not any(hmac.compare_digest(expected, one.encode()) for one in given):
        raise InvalidSignature(InvalidSignature.__doc__)


def retry_delay_s(attempt: DeliveryAttempt, jitter: float, *, attempts_before: int = 0) -> float | None:
    """Seconds until the next attempt after a failed one; None: none, a dead letter.

    `jitter` is random in [0, 1). The receiver's Retry-After can only lengthen the delay. A replay begins the
    schedule again: `attempts_before` are those before it.
    """
    made = attempt.attempt_no - attempts_before
    if attempt.status_code == GONE or made >= ATTEMPTS_MAX:
        return None
    scheduled_s = RETRY_DELAYS_S[made] * (1 + JITTER * jitter)
    return max(scheduled_s, min(attempt.retry_after_s or 0, RETRY_AFTER_MAX_S))
