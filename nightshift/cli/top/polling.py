"""Asks the server again and again on a thread of its own, so that keys are heard while it is slow."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nightshift.cli.terminal import describe
from nightshift.cli.top.snapshot import Snapshot
from nightshift.client import ApiError, ServerUnreachable
from nightshift.errors import NightshiftError
from nightshift.jobs.backoff import Backoff

RETRY: Final = Backoff(first_s=1.0, longest_s=15.0)
STOP_S: Final = 0.2  # until the thread is left behind, where the server hangs


@dataclass(frozen=True)
class Polled:
    """The newest snapshot. `problem`: why there is none since. `fatal`: why there will be none."""

    snapshot: Snapshot
    problem: str | None = None
    fatal: NightshiftError | None = None


class Poller:
    """Polls within a `with` block, and calls `on_news` on its thread whenever `polled` has changed."""

    def __init__(
        self,
        take: Callable[[], Snapshot],
        first: Snapshot,
        interval_s: float,
        on_news: Callable[[], None],
    ) -> None:
        self.polled = Polled(first)
        self._take = take
        self._interval_s = interval_s
        self._on_news = on_news
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polling", daemon=True)

    def __enter__(self) -> "Poller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        failures, delay_s = 0, self._interval_s
        while not self._is_stopping.wait(delay_s):
            self.polled, failures = self._asked(failures)
            if self.polled.fatal is None:
                delay_s = RETRY.delay_s(failures) if failures else self._interval_s
            self._on_news()
            if self.polled.fatal is not None:
                return

    def _asked(self, failures: int) -> tuple[Polled, int]:
        """The next state, and how many times in a row there was no answer."""
        last = self.polled.snapshot
        try:
            return Polled(self._take()), 0
        except ServerUnreachable as error:
            return Polled(last, _away(error, failures + 1)), failures + 1
        except ApiError as error:
            if error.is_passing or error.status >= 500:
                return Polled(last, _away(error, failures + 1)), failures + 1
            return Polled(last, fatal=error), failures


def _away(error: NightshiftError, failures: int) -> str:
    return f"trying again in {RETRY.delay_s(failures):.0f} s; this is old: {describe(error)}"
