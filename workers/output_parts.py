"""A worker's thread that writes parts of outputs: where no part is ready, it looks again after a while.

While the worker runs rows it leaves parts to others, who have memory and time for them, unless they do not
keep up.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from nightshift.bulk.results.part_writer import PartDependencies, PartWriter, WritingStopped
from nightshift.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between looks; the scheduler writes parts, too
LEFT_LOOKS: Final = 3  # in a row that find a part which others have left: then it is written beside rows


class OutputParts:
    def __init__(
        self, dependencies: PartDependencies, worker_id: str, runs_rows: Callable[[], bool] = lambda: False
    ) -> None:
        self._store = dependencies.store
        self._runs_rows = runs_rows
        self._left = 0  # looks in a row that have found a part
        self._stop = threading.Event()
        self._writer = PartWriter(dependencies, worker_id, lambda: not self._stop.is_set())
        self._thread = threading.Thread(target=self._run, name="output-parts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """The part that is being written is handed back at its next rows."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Writes the parts there are for this worker. Raises WritingStopped."""
        try:
            while self._has_part() and self._writer.write_next():
                pass
        except DatabaseUnavailable as error:
            log.info("no part written", extra={"action": "part_postponed", "reason": error.message})

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except WritingStopped:
                return
            except Exception:
                log.exception("writing a part broke", extra={"action": "part_broke"})

    def _has_part(self) -> bool:
        """A look is cheaper than a claim, which is a write."""
        with self._store.snapshot() as tx:
            is_there = tx.parts.has_claimable(tx.now())
        self._left = self._left + 1 if is_there else 0
        return is_there and (self._left >= LEFT_LOOKS or not self._runs_rows())
