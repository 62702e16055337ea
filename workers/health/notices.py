"""What a worker does about a spot notice.

    rebalance      leave, if this is a spot machine and a worker on another one is ready to replace this one
    interruption   leave

Restarted under a notice, it loads no model before the notice is withdrawn.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.workers import Capacity, NoticeKind, WorkerState
from nightshift.outbound.cloud_metadata import Notice, Provider
from nightshift.process.settings import WorkerSettings
from workers.health.registration import Registration
from workers.health.spot import SpotWatcher
from workers.leases.heartbeat import Heartbeat

log = logging.getLogger(__name__)

FIRST_LOOK_S: Final = 3.0  # for the first answer, at a start
LOOK_MAX_S: Final = 10.0  # a look may hang; the last notice expires meanwhile


class Notices:
    """Without a provider there are none."""

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
        """Begin to watch. Returns once there is no notice that this worker would leave for."""
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
        """Tell the cloud that it need not wait: no worker here has work. The machine's other workers had the
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
