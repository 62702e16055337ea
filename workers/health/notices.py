"""Follows spot notices, for which it asks the cloud's metadata server.

    rebalance      leave, if this is a spot machine and a worker on another one is ready to replace this one
    interruption   leave

Restarted under a notice, it loads no model before the notice is withdrawn.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.workers import Capacity, NoticeKind, WorkerState
from nightshift.outbound.cloud_metadata import Notice, Provider
from nightshift.process.settings import WorkerSettings
from workers.health.registration import Registration
from workers.leases.heartbeat import Heartbeat

log = logging.getLogger(__name__)

FIRST_LOOK_S: Final = 3.0  # for the first answer, at a start
LOOK_MAX_S: Final = 10.0  # a look may hang; the last notice expires meanwhile


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
        """Stops without waiting for a look under way."""
        self._stopping.set()

    @property
    def current(self) -> Notice | None:
        """The notice in the last answer, for NOTICE_VALID_S; a look that does not end is no answer."""
        is_old = self._clock_s() >= self._answered_at_s + NOTICE_VALID_S
        return None if is_old else self._last

    def look(self) -> Notice | None:
        """Asks once."""
        if self._try(self._poll):
            self._answered_at_s = self._clock_s()
        self.has_looked.set()
        return self.current

    def acknowledge(self, event_id: str) -> bool:
        """Says that it may happen now. False: the server did not take it."""
        return self._try(lambda: self._provider.acknowledge(event_id))

    def _poll(self) -> None:
        self._last = self._provider.poll()

    def _try(self, ask: Callable[[], None]) -> bool:
        """Returns False without an answer. Failures in a row are logged once."""
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


class Notices:
    """Follows the notices of a provider; without one there are none."""

    def __init__(
        self,
        provider: Provider | None,
        settings: WorkerSettings,
        registration: Registration,
        heartbeat: Heartbeat,
        on_leave: Callable[[], None],
    ) -> None:
        """`on_leave` is called from a thread here, with every look while there is a reason to leave."""
        self._settings = settings
        self._registration = registration
        self._heartbeat = heartbeat
        self._on_leave = on_leave
        self._watcher = SpotWatcher(provider, self._on_notice) if provider is not None else None
        heartbeat.notice = self._current
        self._is_waiting = False
        self._reported: NoticeKind | None = None
        self._acknowledged: str | None = None

    def _current(self) -> Notice | None:
        return None if self._watcher is None else self._watcher.current

    def wait_until_withdrawn(self) -> None:
        """Begins to watch. Returns once there is no notice that this worker would leave for."""
        if self._watcher is None:
            return
        self._is_waiting = True
        self._watcher.start()
        self._watcher.has_looked.wait(FIRST_LOOK_S)
        began_s = time.monotonic()
        while (notice := self._watcher.current) is not None and self._must_leave(notice):
            if self._heartbeat.state is not WorkerState.DRAINING:
                self._heartbeat.state = WorkerState.DRAINING
                log.warning(
                    "not started: this machine is about to be taken away; "
                    "waiting until the notice is withdrawn",
                    extra={"action": "waits"},
                )
            if time.monotonic() >= began_s + self._settings.drain_s:
                self._acknowledge(self._watcher, notice.event_id)
            self._watcher.has_looked.clear()
            self._watcher.has_looked.wait(LOOK_MAX_S)
        if self._heartbeat.state is WorkerState.DRAINING:
            log.info("this machine is there to stay: starting", extra={"action": "waited_out"})
        self._heartbeat.state = WorkerState.STARTING
        self._is_waiting = False

    def _acknowledge(self, watcher: SpotWatcher, event_id: str | None) -> None:
        """Tells the cloud that it need not wait: no worker here has work. The machine's other workers had the
        same notice, and the time that a drain may take.
        """
        if event_id is None or event_id == self._acknowledged or not watcher.acknowledge(event_id):
            return
        self._acknowledged = event_id
        log.warning("interruption acknowledged", extra={"action": "acknowledged", "event": event_id})

    def _on_notice(self, notice: Notice) -> None:
        if self._is_waiting or not self._must_leave(notice):
            return
        if self._reported is not notice.kind:
            self._reported = notice.kind
            log.warning(
                "this machine is about to be taken away",
                extra={"action": "spot_notice", "provider": notice.provider, "kind": notice.kind},
            )
            self._heartbeat.beat_now()  # the fleet is to know
        self._on_leave()

    def _must_leave(self, notice: Notice) -> bool:
        if notice.kind is NoticeKind.INTERRUPTION:
            return True
        is_spot = Capacity(self._settings.capacity) is Capacity.SPOT
        return is_spot and self._registration.is_replaceable(
            map(model_id, (*self._settings.models, *self._settings.lazy_models))
        )
