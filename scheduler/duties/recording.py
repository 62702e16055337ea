"""Records figures of the whole service at intervals, for the page and for `nightshift top`, and corrects the
counters of what tenants hold.

Those change in the transaction of what they count, so only an operator's own statements make them differ.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.fleet import figures
from nightshift.jobs.capacity.service_figures import summed
from nightshift.store import Store, Transaction
from scheduler.runtime.duty import PassResult

log = logging.getLogger(__name__)

FORGOTTEN_MAX: Final = 500  # records deleted in a pass: more than are made meanwhile


@dataclass(frozen=True)
class RecordingConfig:
    interval_s: float = figures.INTERVAL_S
    kept: timedelta = figures.KEPT


class Recording:
    name = "recording"

    def __init__(self, store: Store, config: RecordingConfig = RecordingConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s

    def run_once(self, now: datetime) -> PassResult:
        with self._store.snapshot() as tx:
            recorded = self._figures(tx, now)
        with self._store.transaction() as tx:
            tx.figures.record(recorded)
            tx.figures.forget(now - self._config.kept, FORGOTTEN_MAX)
        return PassResult()

    def _figures(self, tx: Transaction, now: datetime) -> figures.ServiceFigures:
        alive = tx.workers.alive(now - figures.ALIVE_WITHIN)
        return summed(now, alive, tx.figures.waiting(), tx.figures.latest())


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
