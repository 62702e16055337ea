"""Decides whether a worker process ends, and with which exit code. One that holds work drains first."""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from nightshift.fleet.workers import EXIT_DRAIN_TOO_SLOW, EXIT_ENGINE_DIED
from nightshift.process.exit_codes import HURRY_AFTER_S, NO_RESTART_EXIT, NO_RESTART_LATE_EXIT
from workers.serving.engine_process.launching import EngineDied, kill_all

log = logging.getLogger(__name__)

# Celery ends the process with these; with others, its connection may be the reason to leave.
IN_ORDER: Final = (0, NO_RESTART_EXIT)


class Shutdown:
    """Decides when the process ends. Any thread may call it."""

    def __init__(self, exit: Callable[[int], None]) -> None:
        """`exit` ends the process, and does not return."""
        self.exit = exit
        self._holds_work = threading.Event()  # once set, leaving means draining
        self._draining = threading.Event()
        self._told_at_s: float | None = None
        self._exit_code = 0
        self._is_drain_requested = False  # by the operator

    # -- reasons to leave

    def told_to_stop(self) -> None:
        """Called from SIGTERM's handler. Without work, or HURRY_AFTER_S after the first signal, the process
        ends at once.
        """
        now_s = time.monotonic()
        if not self._holds_work.is_set():
            self.exit(0)
        elif self._told_at_s is None:
            self._told_at_s = now_s
            self._draining.set()
        elif now_s >= self._told_at_s + HURRY_AFTER_S:
            self.exit(self._exit_code_too_slow)

    def drain_requested(self) -> None:
        """`nightshift workers drain`: repeated with every heartbeat."""
        if not self._is_drain_requested:
            log.info("the operator wants this worker to drain", extra={"action": "drain_requested"})
        self._is_drain_requested = True
        self.leave_once()

    def leave_once(self) -> None:
        """Leaves for a reason that is repeated."""
        if not self.is_draining:
            self.leave()

    def leave(self, exit_code: int = 0) -> None:
        """Drains, and ends the process. Returns at once. The first exit code but 0 counts."""
        self._exit_code = self._exit_code or exit_code
        if self._holds_work.is_set():
            self._draining.set()
        else:
            self.exit(self.exit_code)

    # -- what follows

    def work_begins(self) -> None:
        self._holds_work.set()

    def begin_drain(self) -> bool:
        """Begins to drain. False: there is no work."""
        if not self._holds_work.is_set():
            return False
        self._draining.set()
        return True

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    def wait_for_drain(self) -> None:
        self._draining.wait()

    @property
    def exit_code(self) -> int:
        """The code to end with after the drain."""
        return self._exit_code or (NO_RESTART_EXIT if self._is_drain_requested else 0)

    @property
    def is_in_order(self) -> bool:
        """Whether Celery is to end the process."""
        return self.exit_code in IN_ORDER

    def drain_too_slow(self) -> None:
        """Ends the process; the leases it holds expire."""
        log.critical("drain took too long", extra={"action": "drain_too_slow"})
        self.exit(self._exit_code_too_slow)

    @property
    def _exit_code_too_slow(self) -> int:
        return NO_RESTART_LATE_EXIT if self._is_drain_requested else EXIT_DRAIN_TOO_SLOW


def exit_process(exit_code: int) -> None:
    """Ends now, with the engines' processes, whatever other threads are doing."""
    kill_all()
    logging.shutdown()
    os._exit(exit_code)


def engine_died(error: BaseException) -> None:
    """Ends the process, which would hold its leases and do nothing."""
    log.critical("engine died", exc_info=error, extra={"action": "engine_died"})
    if isinstance(error, EngineDied) and error.killed_by is not None:
        logging.shutdown()
        os.kill(os.getpid(), error.killed_by)  # the supervisor tells a crash from a lack of memory by it
    exit_process(EXIT_ENGINE_DIED)


def dump_stacks() -> None:
    """Celery replaces sys.stderr by an object without a file."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
