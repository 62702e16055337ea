"""Threads of this process that write parts of outputs while there are any."""

import logging
import threading
from collections.abc import Callable

from nightshift.bulk.results.part_writer import PartWriter, WritingStopped
from nightshift.errors import DatabaseUnavailable

log = logging.getLogger(__name__)


class WriterThreads:
    def __init__(self, writer: Callable[[], PartWriter], threads_max: int) -> None:
        self._writer = writer
        self._threads_max = threads_max
        self._changed = threading.Condition()
        self._busy = 0

    def wake(self) -> None:
        """Let threads look for parts, as many as may run. Each ends when it finds none."""
        with self._changed:
            missing = self._threads_max - self._busy
            self._busy += missing
        for _ in range(missing):
            thread = threading.Thread(target=self._run, name="parts", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._ended()
                raise

    def wait_until_idle(self, timeout_s: float) -> bool:
        """False: a part is still being written."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, timeout_s)

    def _run(self) -> None:
        writer = self._writer()
        try:
            while writer.write_next():
                pass
        except WritingStopped:
            log.info("writing stopped", extra={"action": "writing_stopped"})
        except DatabaseUnavailable as error:
            log.warning("no part written: %s", error, extra={"action": "part_postponed"})
        except Exception:
            log.exception("writing a part broke", extra={"action": "part_broke"})
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()
