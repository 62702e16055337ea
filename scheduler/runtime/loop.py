"""The loop: every duty ticks in a thread of its own, at its own interval, for as long as this process leads.

A slow duty holds up no other. A pass that raises is logged and tried again after a growing pause; nothing a
duty does can end the loop. Told to stop, the threads wake at once, and a pass that cannot be interrupted is
left behind after a few seconds: it is safe to repeat, so it is safe to abandon.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightshift.backoff import Backoff
from nightshift.errors import DatabaseUnavailable, NightshiftError
from nightshift.store import Store
from scheduler.runtime.duty import Duty, HandsOut, Interrupted

log = logging.getLogger(__name__)

IsLeading = Callable[[], bool]
Observe = Callable[[str, float, bool], None]  # duty, seconds, whether it succeeded


@dataclass(frozen=True)
class LoopConfig:
    """How the loop paces itself."""

    standby_s: float = 0.5  # between two looks whether we lead: what a takeover costs on top of its detection
    retry_first_s: float = 1.0  # after the first failed pass in a row; doubled after each further one …
    retry_max_s: float = 60.0  # … up to this
    away_max_s: float = 5.0  # … or this, while the database is away: everybody waits for what it missed
    stop_s: float = 5.0  # how long a pass under way is waited for at the end

    def retry_s(self, failures: int, error: Exception) -> float:
        """The pause after so many failed passes in a row, the last one with this error."""
        longest_s = self.away_max_s if isinstance(error, DatabaseUnavailable) else self.retry_max_s
        return Backoff(self.retry_first_s, longest_s).delay_s(failures)


class Ticker:
    """One duty, ticking. `tick` is one turn and says how long to pause; tests call exactly this."""

    def __init__(
        self,
        duty: Duty,
        store: Store,
        is_leading: IsLeading,
        config: LoopConfig = LoopConfig(),
        observe: Observe = lambda duty, seconds, succeeded: None,
    ) -> None:
        self.duty = duty
        self._store = store
        self._is_leading = is_leading
        self._config = config
        self._observe = observe
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            pause_s = self.tick()

    def tick(self) -> float:
        """Do the duty once, if we lead. Returns the seconds to pause before the next turn."""
        if not self._is_leading():
            self._failures = 0
            return self._config.standby_s
        started_s = time.monotonic()
        try:
            has_more = self._do()
        except Interrupted:
            return self._config.standby_s
        except Exception as error:  # noqa: BLE001 - the edge of the loop: whatever it was, the next pass tries again
            self._observe(self.duty.name, time.monotonic() - started_s, False)
            return self._failed(error)
        self._observe(self.duty.name, time.monotonic() - started_s, True)
        self._failures = 0
        return 0.0 if has_more else self.duty.interval_s

    def _do(self) -> bool:
        started_s = time.monotonic()
        result = self.duty.run_once(self._store.now())
        done = {name: count for name, count in result.counts.items() if count}
        if done:
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
            exc_info=None if isinstance(error, NightshiftError) else error,  # those say all there is to say
            extra={"action": "duty_failed", "duty": self.duty.name, "failures": self._failures},
        )
        return pause_s


def run(tickers: Sequence[Ticker], stop: threading.Event, config: LoopConfig = LoopConfig()) -> None:
    """Run every ticker in a thread of its own until told to stop. Returns within `stop_s` of that."""
    threads = [
        # Daemons: a pass that hangs in somebody else's library must not keep the process from ending.
        threading.Thread(target=ticker.run, args=(stop,), name=ticker.duty.name, daemon=True)
        for ticker in tickers
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    ends_at_s = time.monotonic() + config.stop_s
    for ticker, thread in zip(tickers, threads, strict=True):
        thread.join(_left_s(ends_at_s))
        hands = ticker.duty
        is_idle = not isinstance(hands, HandsOut) or hands.wait_until_idle(_left_s(ends_at_s))
        if thread.is_alive() or not is_idle:
            log.warning(
                "%s left behind", thread.name, extra={"action": "duty_abandoned", "duty": thread.name}
            )


def _left_s(ends_at_s: float) -> float:
    return max(0.0, ends_at_s - time.monotonic())
