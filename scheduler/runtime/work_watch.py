"""Watches whether the duties have work, so that an idle scheduler does not poll with a dozen queries.

There is work while a job has not ended, a ring is owed or a delivery is due. Otherwise duties pause until any
process commits (`store.Changes`), the next delivery is due, or `LoopConfig.idle_s` is over.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nightshift.errors import DatabaseUnavailable
from nightshift.store import Store
from nightshift.store.databases.changes import Changes

log = logging.getLogger(__name__)

Clock = Callable[[], float]  # monotonic, in seconds


@dataclass(frozen=True)
class WatchConfig:
    look_s: float = 0.2  # while idle: less than planning's interval
    busy_look_s: float = 1.0  # while there is work


class WorkWatch:
    def __init__(
        self,
        store: Store,
        changes: Changes,
        is_leading: Callable[[], bool],
        config: WatchConfig = WatchConfig(),
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self._changes = changes
        self._is_leading = is_leading
        self._config = config
        self._clock = clock
        self._changed = threading.Condition()
        self._idle_periods = 0
        self._is_idle = False
        self._is_closed = False
        self._has_failed = False
        self._due_at_s = float("inf")

    @property
    def idle_period(self) -> int | None:
        """A number for each. None: there is work, or may be."""
        with self._changed:
            return self._idle_periods if self._is_idle else None

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.look()):
            pass
        self._changes.close()

    def look(self) -> float:
        """Returns the seconds until the next look."""
        try:
            self._set_idle(self._is_leading() and self._has_no_work())
            self._has_failed = False
        except DatabaseUnavailable:  # the duties log it
            self._set_idle(False)
            self._has_failed = False
        except Exception:  # no schema yet, or a backup is being restored
            if not self._has_failed:  # not at every look
                log.exception("cannot tell whether there is work", extra={"action": "watch_failed"})
            self._has_failed = True
            self._set_idle(False)
        if not self._is_idle:
            return self._config.busy_look_s
        return min(self._config.look_s, max(0.0, self._due_at_s - self._clock()))

    def wait_for_work(self, period: int | None, timeout_s: float) -> None:
        """Until this idle period has ended; not at all for None."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._period_is_over(period), timeout_s)

    def close(self) -> None:
        """Release the waiting tickers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_no_work(self) -> bool:
        # Asked first: a commit between the two is seen by the query, and again by the next look.
        has_changed = self._changes.seen()
        if self._is_idle and not has_changed and self._clock() < self._due_at_s:
            return True
        with self._store.snapshot() as tx:
            now = tx.now()
            due_at = tx.load.due_at(now)
        left_s = float("inf") if due_at is None else (due_at - now).total_seconds()
        self._due_at_s = self._clock() + left_s
        return left_s > 0

    def _set_idle(self, is_idle: bool) -> None:
        with self._changed:
            self._idle_periods += is_idle and not self._is_idle
            self._is_idle = is_idle
            self._changed.notify_all()

    def _period_is_over(self, period: int | None) -> bool:
        return period is None or not self._is_idle or period != self._idle_periods
