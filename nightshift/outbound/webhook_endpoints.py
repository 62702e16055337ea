"""A webhook endpoint: a receiver that a tenant has registered for some types of events."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nightshift.outbound.webhook_events import is_subscribed
from nightshift.outbound.webhooks import GONE, DeliveryAttempt

ENDPOINTS_MAX: Final = 20  # per tenant: an event makes a delivery for each at most
SECRET_OVERLAP: Final = timedelta(hours=24)  # a rotated secret still signs this long beside the new one
FAILING_MAX: Final = timedelta(days=5)  # without a success; then the endpoint is disabled
HINT_CHARS: Final = 4  # shown of a secret, to tell it from others


class DisabledReason(StrEnum):
    REQUESTED = "requested"  # its tenant's wish
    GONE = "gone"  # it answered 410
    FAILING = "failing"  # no attempt succeeded for `FAILING_MAX`


@dataclass(frozen=True, kw_only=True)
class WebhookEndpoint:
    id: str  # whe_…
    tenant_id: str
    name: str
    url: str
    event_types: tuple[str, ...]  # names and wildcards
    secret: bytes = field(repr=False)  # encrypted
    secret_hint: str
    previous_secret: bytes | None = field(default=None, repr=False)  # encrypted; signs too until …
    previous_secret_until: datetime | None = None
    created_at: datetime
    updated_at: datetime  # when its configuration or secret last changed
    failing_since: datetime | None = None  # the first failed attempt since the last success
    disabled_at: datetime | None = None  # None: it gets events
    disabled_reason: DisabledReason | None = None

    @property
    def is_enabled(self) -> bool:
        return self.disabled_at is None

    def wants(self, event_type: str) -> bool:
        return is_subscribed(self.event_types, event_type)

    def after_attempt(self, made: DeliveryAttempt, now: datetime) -> "WebhookEndpoint":
        """A success ends its failures; 410, or only failures for `FAILING_MAX`, disable it. Pure."""
        if made.delivered:
            return replace(self, failing_since=None)
        if not self.is_enabled:
            return self
        failing = replace(self, failing_since=self.failing_since or now)
        if made.status_code == GONE:
            return failing.disabled(DisabledReason.GONE, now)
        if now - (self.failing_since or now) >= FAILING_MAX:
            return failing.disabled(DisabledReason.FAILING, now)
        return failing

    def disabled(self, reason: DisabledReason, now: datetime) -> "WebhookEndpoint":
        return replace(self, disabled_at=now, disabled_reason=reason)

    def enabled(self) -> "WebhookEndpoint":
        """The endpoint, enabled again: it may fail for `FAILING_MAX` again."""
        return replace(self, disabled_at=None, disabled_reason=None, failing_since=None)

    def secrets(self, now: datetime) -> list[bytes]:
        """The encrypted secrets that sign an attempt, the newest first."""
        until = self.previous_secret_until
        if self.previous_secret is None or until is None or until <= now:
            return [self.secret]
        return [self.secret, self.previous_secret]


def hint(secret: str) -> str:
    """Returns the form in which a secret is shown once it is not told any more."""
    return f"whsec_…{secret[-HINT_CHARS:]}"
