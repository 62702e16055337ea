"""Limits the webhook attempts under way, in all and per tenant.

A tenant gets no slot once it holds as many as are free (`tenants/fairness.py`): several tenants whose
receivers hang cannot take every one.
"""

import threading
from collections import Counter

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.tenants.fairness import may_take


class InFlightLimiter:
    """Thread-safe."""

    def __init__(self, slots_max: int, slots_per_tenant_max: int) -> None:
        self._slots_max = slots_max
        self._slots_per_tenant_max = slots_per_tenant_max
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

    def acquire(self, delivery: Delivery) -> bool:
        """False: no slot is left for this tenant."""
        with self._changed:
            if self._is_full(delivery.tenant_id):
                return False
            self._of_tenant[delivery.tenant_id] += 1
            return True

    def release(self, delivery: Delivery, outcome: DeliveryState | None) -> None:
        with self._changed:
            self._of_tenant[delivery.tenant_id] -= 1
            self._of_tenant += Counter()  # drops the zeros
            if outcome is not None:
                self._outcomes[outcome] += 1
            self._changed.notify_all()

    def take_outcomes(self) -> "Counter[DeliveryState]":
        """Those since the last call."""
        with self._changed:
            taken, self._outcomes = self._outcomes, Counter()
            return taken

    def wait_until_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._of_tenant, timeout_s)

    @property
    def _free(self) -> int:
        return self._slots_max - self._of_tenant.total()

    def _is_full(self, tenant_id: str) -> bool:
        held = self._of_tenant[tenant_id]
        return held >= self._slots_per_tenant_max or not may_take(1, held=held, free=self._free)
