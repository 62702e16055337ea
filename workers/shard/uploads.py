"""Writes the checkpoints of one shard, in order, on its own thread: a slow object store stops no row.

Nothing is spooled to a local disk: an object is stored before it is listed, and a listing after the lease is
refused.
"""

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from nightshift.errors import DatabaseUnavailable, NightshiftError, StorageError
from nightshift.jobs.leases import fault_delay_s
from nightshift.objectstore.verdicts import storage_verdict
from workers.shard.checkpoints import Checkpoint

log = logging.getLogger(__name__)

LISTING_RETRY_S: Final = 1.0  # while the database is away, or the lease is not trusted
UPLOADS_MAX: Final = 4  # unlisted checkpoints; with so many, no row is admitted


class Uploads:
    """`put` and `abandon` are called from the shard's thread."""

    def __init__(
        self,
        commit: Callable[[Checkpoint], None],
        *,
        is_trusted: Callable[[], bool],
        on_listed: Callable[[Checkpoint], None],
        on_failed: Callable[[Exception], None],
        on_waiting: Callable[[NightshiftError], None] = lambda error: None,
        name: str,
    ) -> None:
        """`commit` is called again with a checkpoint it failed on, and only while the lease is trusted. The
        last three are called from this thread.
        """
        self._commit = commit
        self._is_trusted = is_trusted
        self._on_listed = on_listed
        self._on_failed = on_failed
        self._on_waiting = on_waiting
        self._shard = name
        self._asked_s: float | None = None  # when the commit under way began
        self._waiting: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"uploads-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """How long the commit under way has lasted; 0: there is none. For any thread."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def put(self, checkpoint: Checkpoint) -> None:
        self._waiting.put(checkpoint)

    def abandon(self) -> None:
        """A checkpoint being written may still be listed, if the term holds."""
        self._abandoned.set()
        self._waiting.put(None)

    def _run(self) -> None:
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """False: it was the last. Of one that is listed nothing is held while the next is waited for."""
        checkpoint = self._waiting.get()
        if checkpoint is None:
            return False
        try:
            if not self._write(checkpoint):
                return False
        except Exception as error:  # noqa: BLE001 the shard's thread decides
            self._on_failed(error)
            return False
        self._on_listed(checkpoint)
        return True

    def _write(self, checkpoint: Checkpoint) -> bool:
        """False: abandoned. Raises non-retryable errors."""
        faults = 0
        while not self._abandoned.is_set():
            wait_s = LISTING_RETRY_S
            if self._is_trusted():
                self._asked_s = time.monotonic()
                try:
                    self._commit(checkpoint)
                    return True
                except (DatabaseUnavailable, StorageError) as error:
                    if not may_pass(error):
                        raise
                    self._log_waiting(error)
                    self._on_waiting(error)
                    if isinstance(error, StorageError):
                        faults += 1
                        wait_s = fault_delay_s(faults, self._shard)
                finally:
                    self._asked_s = None
            self._abandoned.wait(wait_s)
        return False

    def _log_waiting(self, error: DatabaseUnavailable | StorageError) -> None:
        log.warning(
            "checkpoint waits",
            extra={"action": "checkpoint_waits", "shard": self._shard, "reason": error.message},
        )


def may_pass(error: DatabaseUnavailable | StorageError) -> bool:
    """Whether the database or our own store may be back later."""
    return isinstance(error, DatabaseUnavailable) or storage_verdict(error, in_our_store=True) != "fail"
