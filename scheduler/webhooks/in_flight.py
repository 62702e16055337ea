"""Limits the webhook attempts under way: in all, per tenant and per destination.

A tenant gets no slot once it holds as many as are free. A destination that is not known to answer gets one
slot, and those of a tenant together leave it some for the others.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.tenants.quotas import may_take
from scheduler.webhooks.circuits import WebhookDestination


@dataclass(frozen=True)
class SlotLimits:
    in_all: int = 128  # each has a thread
    per_tenant: int = 32
    per_tenant_unanswered: int = 24  # slots of these for destinations not known to answer
    per_destination: int = 4


@dataclass(frozen=True)
class AttemptOutcome:
    """The outcome of an attempt. `answered` is None if that says nothing of its destination."""

    destination: WebhookDestination
    state: DeliveryState
    answered: bool | None
    ended_at: datetime
    seconds: float = 0.0  # the attempt's duration


def webhook_destination(delivery: Delivery) -> WebhookDestination:
    return WebhookDestination(delivery.tenant_id, delivery.url)


class InFlightLimiter:
    """Thread-safe."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._of_tenant: Counter[str] = Counter()
        self._unanswered_of_tenant: Counter[str] = Counter()
        self._of_destination: Counter[WebhookDestination] = Counter()
        self._unanswered: set[str] = set()  # ids of deliveries whose destination was not known to answer
        self._outcomes: list[AttemptOutcome] = []
        self._changed = threading.Condition()

    @property
    def is_full(self) -> bool:
        with self._changed:
            return self._free == 0

    @property
    def has_outcomes(self) -> bool:
        """Whether attempts have ended since outcomes were taken."""
        with self._changed:
            return bool(self._outcomes)

    def full_tenants(self) -> list[str]:
        with self._changed:
            return [tenant for tenant in self._of_tenant if self._is_full(tenant)]

    def destinations(self) -> list[WebhookDestination]:
        """Destinations with attempts under way."""
        with self._changed:
            return list(self._of_destination)

    def acquire(self, delivery: Delivery, *, answers: bool) -> bool:
        """Takes a slot. False: none is left for its tenant or destination. `answers`: whether the destination
        is known to.
        """
        tenant, destination = delivery.tenant_id, webhook_destination(delivery)
        with self._changed:
            if self._is_full(tenant) or self._of_destination[destination] >= self._places(answers):
                return False
            if not answers:
                if self._unanswered_of_tenant[tenant] >= self._limits.per_tenant_unanswered:
                    return False
                self._unanswered_of_tenant[tenant] += 1
                self._unanswered.add(delivery.id)
            self._of_tenant[tenant] += 1
            self._of_destination[destination] += 1
            return True

    def release(self, delivery: Delivery, outcome: AttemptOutcome | None) -> None:
        with self._changed:
            self._of_tenant[delivery.tenant_id] -= 1
            self._of_destination[webhook_destination(delivery)] -= 1
            if delivery.id in self._unanswered:
                self._unanswered.remove(delivery.id)
                self._unanswered_of_tenant[delivery.tenant_id] -= 1
            for held in (self._of_tenant, self._of_destination, self._unanswered_of_tenant):
                held += Counter()  # drops the zeros
            if outcome is not None:
                self._outcomes.append(outcome)
            self._changed.notify_all()

    def take_outcomes(self) -> Sequence[AttemptOutcome]:
        """Returns the outcomes since the last call."""
        with self._changed:
            taken, self._outcomes = self._outcomes, []
            return taken

    def wait_until_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._of_tenant, timeout_s)

    @property
    def _free(self) -> int:
        return self._limits.in_all - self._of_tenant.total()

    def _is_full(self, tenant_id: str) -> bool:
        held = self._of_tenant[tenant_id]
        return held >= self._limits.per_tenant or not may_take(1, held=held, free=self._free)

    def _places(self, answers: bool) -> int:
        return self._limits.per_destination if answers else 1
