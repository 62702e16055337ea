"""Says which duties are due: one look for all of them, so that a scheduler without work does nothing else.

A look asks whether any process has committed. Only then, or when a time that a duty waits for has come, one
query says what there is to do, and each duty says from when that is its own. `LoopConfig.longest_s` bounds
what a look misses.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from nightshift.errors import DatabaseUnavailable
from nightshift.store import PendingWork
from scheduler.runtime.duty import Duty, WaitsForWork

log = logging.getLogger(__name__)

Clock = Callable[[], float]  # monotonic, in seconds


@dataclass(frozen=True)
class WatchConfig:
    look_s: float = 0.1  # between looks: what an event waits for its first attempt, at most
    idle_look_s: float = 0.2  # while there is no job: what one waits to be planned, at most
    kept_s: float = 5.0  # an answer is used no longer: the database's clock may be set
    # The query costs more with thousands of jobs: it takes no more than this share of the time …
    asking_share_max: float = 0.2
    asking_pause_max_s: float = 0.25  # … but is not put off for longer
    standby_s: float = 0.5  # between looks whether this process leads
    retry_s: float = 1.0  # after a look that failed


class Changes(Protocol):
    def seen(self) -> bool:
        """Whether there may be commits since the last call. Raises DatabaseUnavailable."""

    def close(self) -> None: ...


class WorkWatch:
    """Looked at from one thread, waited on by one of each duty."""

    def __init__(
        self,
        ask: Callable[[], PendingWork],
        changes: Changes,
        duties: Sequence[Duty],
        is_leading: Callable[[], bool],
        config: WatchConfig = WatchConfig(),
        clock: Clock = time.monotonic,
    ) -> None:
        """`ask` raises DatabaseUnavailable."""
        self._ask = ask
        self._changes = changes
        self._waiting = [duty for duty in duties if isinstance(duty, WaitsForWork)]
        self._is_leading = is_leading
        self._config = config
        self._clock = clock
        self._due = {duty.name: threading.Event() for duty in duties}
        self._work: PendingWork | None = None  # the last answer; None: not known
        self._asked_s = self._may_ask_s = float("-inf")
        self._next_due_s = float("inf")  # the first time to come that a duty waits for
        self._has_changed = True
        self._has_failed = False

    def is_due(self, duty: str) -> bool:
        return self._due[duty].is_set()

    def begin_pass(self, duty: str) -> None:
        """Notes that a pass begins: only a later look can say that there is more to do."""
        self._due[duty].clear()

    def wait_until_due(self, duty: str, timeout_s: float) -> None:
        """Returns at once if it is due, at the latest after the timeout or `close`."""
        self._due[duty].wait(timeout_s)

    def close(self) -> None:
        """Releases the waiting duties."""
        self._set_all_due()

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.look()):
            pass
        self._changes.close()

    def look(self) -> float:
        """Returns the seconds until the next look."""
        if not self._is_leading():
            self._work = None
            return self._config.standby_s
        try:
            self._look()
        except DatabaseUnavailable:  # the duties log it
            return self._failed()
        except Exception:  # no schema yet, or a backup is being restored
            if not self._has_failed:  # not at every look
                log.exception("cannot tell whether there is work", extra={"action": "watch_failed"})
            self._has_failed = True
            return self._failed()
        self._has_failed = False
        return min(self._look_s, max(0.0, self._next_due_s - self._clock()))

    @property
    def _look_s(self) -> float:
        has_job = self._work is not None and self._work.has_job
        return self._config.look_s if has_job else self._config.idle_look_s

    def _look(self) -> None:
        # Before the query: a commit between the two is seen by the query, and again by the next look.
        self._has_changed |= self._changes.seen()
        work = self._work
        if work is None:  # this process leads from now on, or knows again: every duty begins with a pass
            self._work = self._asked()
            self._next_due_s = float("inf")
            self._set_all_due()
            return
        now_s = self._clock()
        is_old = now_s >= min(self._asked_s + self._config.kept_s, self._next_due_s)
        if (self._has_changed or is_old) and now_s >= self._may_ask_s:
            self._work = work = self._asked()
        self._tell_due(work)

    def _asked(self) -> PendingWork:
        began_s = self._clock()
        work = self._ask()
        took_s = self._clock() - began_s
        pause_s = min(took_s / self._config.asking_share_max, self._config.asking_pause_max_s)
        self._asked_s, self._may_ask_s = began_s, began_s + took_s + pause_s
        self._has_changed = False
        return work

    def _tell_due(self, work: PendingWork) -> None:
        now = work.at + timedelta(seconds=self._clock() - self._asked_s)
        to_come: list[datetime] = []
        for duty in self._waiting:
            due_at = duty.due_at(work)
            if due_at is not None and due_at <= now:
                self._due[duty.name].set()
                continue
            self._due[duty.name].clear()
            if due_at is not None:
                to_come.append(due_at)
        left_s = (min(to_come) - now).total_seconds() if to_come else float("inf")
        self._next_due_s = self._clock() + left_s

    def _failed(self) -> float:
        self._work, self._has_changed = None, True
        self._set_all_due()
        return self._config.retry_s

    def _set_all_due(self) -> None:
        for event in self._due.values():
            event.set()
