"""Asks the cloud's metadata server whether this machine is about to be taken away.

A machine that got no notice loses what a killed one loses. The server's faults stay in this thread.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from nightshift.outbound.cloud_metadata import Notice, Provider

log = logging.getLogger(__name__)

NOTICE_VALID_S: Final = 300.0  # without an answer: a server that is gone cannot withdraw its notice


class SpotWatcher:
    def __init__(
        self,
        provider: Provider,
        on_notice: Callable[[Notice], None],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_notice` is called after every look that finds a notice."""
        self._provider = provider
        self._on_notice = on_notice
        self._clock_s = clock_s
        self._answered_at_s = clock_s()
        self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spot", daemon=True)
        self._last: Notice | None = None  # in the last answer
        self.has_looked = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a look under way."""
        self._stopping.set()

    @property
    def current(self) -> Notice | None:
        """The notice in the last answer, for NOTICE_VALID_S; a look that does not end is no answer."""
        is_old = self._clock_s() >= self._answered_at_s + NOTICE_VALID_S
        return None if is_old else self._last

    def look(self) -> Notice | None:
        """Ask once."""
        if self._try(self._poll):
            self._answered_at_s = self._clock_s()
        self.has_looked.set()
        return self.current

    def acknowledge(self, event_id: str) -> bool:
        """Say that it may happen now. False: the server did not take it."""
        return self._try(lambda: self._provider.acknowledge(event_id))

    def _poll(self) -> None:
        self._last = self._provider.poll()

    def _try(self, ask: Callable[[], None]) -> bool:
        """False: no answer. Failures in a row are logged once."""
        try:
            ask()
        except Exception as error:  # noqa: BLE001 anything may answer at that address
            if not self._is_failing:
                log.warning(
                    "no answer from the metadata server: %r",
                    error,
                    extra={"action": "spot_unanswered", "provider": self._provider.name},
                )
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            notice = self.look()
            try:
                if notice is not None:
                    self._on_notice(notice)
            except Exception:
                log.exception("notice not followed", extra={"action": "notice_not_followed"})
            self._stopping.wait(self._provider.interval_s)
