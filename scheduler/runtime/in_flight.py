"""Room for deliveries under way: so many in all, and so many of one tenant, so that nobody fills the room.

Nor do several together, whose receivers all hang: a tenant holds no more places than it leaves free
(`tenants/fairness.py`).

It knows nothing of what happens on the way, only who is on it and how they ended.
"""

import threading
from collections import Counter

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.tenants.fairness import may_take


class Flights:
    """Which attempts are under way, how many of whose, and how they ended. Thread-safe."""

    def __init__(self, places_max: int, places_per_tenant_max: int) -> None:
        self._places_max = places_max
        self._places_per_tenant_max = places_per_tenant_max
        self._of_tenant: Counter[str] = Counter()
        self._outcomes: Counter[DeliveryState] = Counter()
        self._changed = threading.Condition()

    @property
    def is_full(self) -> bool:
        with self._changed:
            return self._free == 0

    def full_tenants(self) -> list[str]:
        with self._changed:
            return [tenant for tenant in self._of_tenant if self._is_full(tenant)]

    def admit(self, delivery: Delivery) -> bool:
        """Make room for an attempt. False: there is none left, for anybody or for this tenant."""
        with self._changed:
            if self._is_full(delivery.tenant_id):
                return False
            self._of_tenant[delivery.tenant_id] += 1
            return True

    def land(self, delivery: Delivery, outcome: DeliveryState | None) -> None:
        with self._changed:
            self._of_tenant[delivery.tenant_id] -= 1
            self._of_tenant += Counter()  # drops the zeros
            if outcome is not None:
                self._outcomes[outcome] += 1
            self._changed.notify_all()

    def take_outcomes(self) -> "Counter[DeliveryState]":
        """How attempts ended since this was last asked."""
        with self._changed:
            taken, self._outcomes = self._outcomes, Counter()
            return taken

    def wait_until_none(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._of_tenant, timeout_s)

    @property
    def _free(self) -> int:
        return self._places_max - self._of_tenant.total()

    def _is_full(self, tenant_id: str) -> bool:
        held = self._of_tenant[tenant_id]
        return held >= self._places_per_tenant_max or not may_take(1, held=held, free=self._free)
