"""How a worker process ends itself: with a reason in its log, and an exit code that its supervisor knows."""

import faulthandler
import logging
import os
import sys

from nightshift.fleet.workers import EXIT_ENGINE_DIED

log = logging.getLogger(__name__)


def leave_process(exit_code: int) -> None:
    """End now, whatever other threads are doing. Never returns."""
    logging.shutdown()
    os._exit(exit_code)


def engine_died(error: BaseException) -> None:
    """A worker without its engine must not live on: it would hold its leases and do nothing."""
    log.critical("engine died", exc_info=error, extra={"action": "engine_died"})
    leave_process(EXIT_ENGINE_DIED)


def dump_stacks() -> None:
    """Where every thread is, for whoever asks later why it was stuck. Celery puts something else in place of
    sys.stderr, which has no file.
    """
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
