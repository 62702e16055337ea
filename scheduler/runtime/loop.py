"""Runs every duty in its own thread while this process leads, so that a slow one delays no other.

A pass begins when the duty is due, after its interval at the earliest. One that raises is tried again after a
growing pause. On stop, a pass that cannot be interrupted is abandoned, since it is safe to repeat.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightshift.errors import DatabaseUnavailable, NightshiftError
from nightshift.jobs.backoff import Backoff
from nightshift.store import Store
from scheduler.runtime.duty import (
    Duty,
    FillsThreads,
    Interrupted,
    RunsInBackground,
    WaitsForWork,
)
from scheduler.runtime.work_watch import WorkWatch

log = logging.getLogger(__name__)

IsLeading = Callable[[], bool]
Observe = Callable[[str, float, bool], None]  # duty, seconds, whether it succeeded


@dataclass(frozen=True)
class LoopConfig:
    longest_s: float = 30.0  # between passes of a duty that is not due: what a look may miss costs
    standby_s: float = 0.5  # after a pass that was interrupted
    retry_first_s: float = 1.0  # after a failed pass, then doubled …
    retry_max_s: float = 60.0  # … up to this
    away_max_s: float = 5.0  # … or this, while the database is away
    stop_s: float = 5.0  # for a pass under way to end

    def retry_s(self, failures: int, error: Exception) -> float:
        """Seconds to wait after so many failed passes in a row."""
        longest_s = self.away_max_s if isinstance(error, DatabaseUnavailable) else self.retry_max_s
        return Backoff(self.retry_first_s, longest_s).delay_s(failures)


@dataclass(frozen=True)
class Pause:
    """`least_s` in any case, then until the duty is due, up to `longest_s`."""

    least_s: float
    longest_s: float = 0.0


class Ticker:
    def __init__(
        self,
        duty: Duty,
        store: Store,
        is_leading: IsLeading,
        config: LoopConfig = LoopConfig(),
        observe: Observe = lambda duty, seconds, succeeded: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.duty = duty
        self._store = store
        self._is_leading = is_leading
        self._config = config
        self._observe = observe
        self._failures = 0
        self._clock = clock
        self._began_s: float | None = None  # the pass under way

    @property
    def standing_s(self) -> float:
        """Seconds for which the pass under way has lasted, or its threads have been blocked. For any
        thread.
        """
        began_s = self._began_s
        pass_s = 0.0 if began_s is None else self._clock() - began_s
        return max(pass_s, self.duty.blocked_s) if isinstance(self.duty, FillsThreads) else pass_s

    def run(self, stop: threading.Event, work: WorkWatch) -> None:
        while not stop.is_set():
            work.begin_pass(self.duty.name)
            pause = self.tick()
            if not stop.wait(pause.least_s) and pause.longest_s > pause.least_s:
                work.wait_until_due(self.duty.name, pause.longest_s - pause.least_s)

    def tick(self) -> Pause:
        """One turn. Returns the pause after it."""
        if not self._is_leading():
            self._failures = 0
            return Pause(0.0, self._config.longest_s)
        started_s = time.monotonic()
        self._began_s = self._clock()
        try:
            has_more = self._run_duty()
        except Interrupted:
            return Pause(self._config.standby_s)
        except Exception as error:  # noqa: BLE001 - the next pass tries again
            self._observe(self.duty.name, time.monotonic() - started_s, False)
            return Pause(self._failed(error))
        finally:
            self._began_s = None
        self._observe(self.duty.name, time.monotonic() - started_s, True)
        self._failures = 0
        return Pause(0.0) if has_more else self._pause()

    def _pause(self) -> Pause:
        """The pause after a pass that did all it could."""
        interval_s = self.duty.interval_s
        waits = isinstance(self.duty, WaitsForWork)
        return Pause(interval_s, self._config.longest_s if waits else interval_s)

    def _run_duty(self) -> bool:
        started_s = time.monotonic()
        result = self.duty.run_once(self._store.now())
        done = {name: count for name, count in result.counts.items() if count}
        if result.has_news:
            took_s = round(time.monotonic() - started_s, 3)
            log.info("%s", self.duty.name, extra={"action": self.duty.name, **done, "seconds": took_s})
        return result.has_more

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        pause_s = self._config.retry_s(self._failures, error)
        log.error(
            "%s failed, next try in %.0f s: %s",
            self.duty.name,
            pause_s,
            error,
            exc_info=None if isinstance(error, NightshiftError) else error,  # ours need no traceback
            extra={"action": "duty_failed", "duty": self.duty.name, "failures": self._failures},
        )
        return pause_s


def stalled(tickers: Sequence[Ticker], after_s: float) -> str | None:
    """A duty that has stood still for longer than this, the longest first."""
    standing = {ticker.duty.name: ticker.standing_s for ticker in tickers}
    longest = max(standing, key=standing.__getitem__, default=None)
    return longest if longest is not None and standing[longest] > after_s else None


def run(
    tickers: Sequence[Ticker], work: WorkWatch, stop: threading.Event, config: LoopConfig = LoopConfig()
) -> None:
    """Returns within `stop_s` after `stop` is set."""
    # Daemons: a pass that hangs must not keep the process alive.
    watching = threading.Thread(target=work.run, args=(stop,), name="work-watch", daemon=True)
    threads = [
        threading.Thread(target=ticker.run, args=(stop, work), name=ticker.duty.name, daemon=True)
        for ticker in tickers
    ]
    for thread in (watching, *threads):
        thread.start()
    stop.wait()
    work.close()
    ends_at_s = time.monotonic() + config.stop_s
    for ticker, thread in zip(tickers, threads, strict=True):
        thread.join(_left_s(ends_at_s))
        duty = ticker.duty
        is_idle = not isinstance(duty, RunsInBackground) or duty.wait_until_idle(_left_s(ends_at_s))
        if thread.is_alive() or not is_idle:
            log.warning("%s abandoned", thread.name, extra={"action": "duty_abandoned", "duty": thread.name})
    watching.join(_left_s(ends_at_s))


def _left_s(ends_at_s: float) -> float:
    return max(0.0, ends_at_s - time.monotonic())
