"""A worker's thread that writes parts of outputs: where no part is ready, it looks again after a while."""

import logging
import threading
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.output.part_writer import PartDependencies, PartWriter, WritingStopped

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between looks; the scheduler writes parts, too


class OutputParts:
    def __init__(self, dependencies: PartDependencies, worker_id: str) -> None:
        self._store = dependencies.store
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

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                while self._has_claimable() and self._writer.write_next():
                    pass
            except WritingStopped:
                return
            except DatabaseUnavailable as error:
                log.info("no part written", extra={"action": "part_postponed", "reason": error.message})
            except Exception:
                log.exception("writing a part broke", extra={"action": "part_broke"})

    def _has_claimable(self) -> bool:
        """A look is cheaper than a claim, which is a write."""
        with self._store.snapshot() as tx:
            return tx.parts.has_claimable(tx.now())
