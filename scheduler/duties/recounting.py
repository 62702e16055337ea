"""Corrects the counters of what tenants hold.

They change in the transaction of what they count, so only an operator's own statements make them differ.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from nightshift.store import Store
from scheduler.runtime.duty import PassResult

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recounted(PassResult):
    corrected: int = 0  # tenants


class Recounting:
    name = "recounting"

    def __init__(self, store: Store, interval_s: float) -> None:
        self._store = store
        self.interval_s = interval_s

    def run_once(self, now: datetime) -> Recounted:
        with self._store.snapshot() as tx:  # nothing is locked unless something differs
            if not tx.holdings.differences():
                return Recounted()
        with self._store.transaction() as tx:
            differences = tx.holdings.differences()
            for tenant_id, difference in differences.items():
                tx.holdings.add(tenant_id, difference)
        log.warning("counters corrected", extra={"action": "counters_corrected", "tenants": len(differences)})
        return Recounted(corrected=len(differences))
