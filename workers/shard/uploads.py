"""Writes the checkpoints of one shard, in order, on a thread of its own: a slow object store does not stop
the rows, a dead one stops them after a few checkpoints.

Trouble that may pass is waited for while the lease is held: what is finished is kept, and nothing that is
stored already is stored again. There is no spool on a local disk. An object is stored before it is listed, so
what a spool could save is in the object store by then; and a listing that comes after the lease is refused.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from nightshift.errors import DatabaseUnavailable, StorageError
from nightshift.jobs.leases import retry_delay_s
from nightshift.objectstore.verdicts import storage_verdict
from workers.shard.segments import Checkpoint

log = logging.getLogger(__name__)

LISTING_RETRY_S: Final = 1.0  # while the database is away, or the lease is not trusted
UPLOADS_MAX: Final = 4  # checkpoints not written yet; with so many, no further row is given to the engine


class Uploads:
    """Checkpoints on their way. `put` and `abandon` are called from the shard's thread."""

    def __init__(
        self,
        commit: Callable[[Checkpoint], None],
        *,
        is_trusted: Callable[[], bool],
        on_stored: Callable[[Checkpoint], None],
        on_broken: Callable[[Exception], None],
        name: str,
    ) -> None:
        """`commit` may be asked again with a checkpoint it failed to write. While the lease is not trusted,
        nothing is written. The last two are called from the thread here.
        """
        self._commit = commit
        self._is_trusted = is_trusted
        self._on_stored = on_stored
        self._on_broken = on_broken
        self._shard = name
        self._waiting: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._pending = 0  # written and read by the shard's thread alone
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"uploads-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def is_full(self) -> bool:
        return self._pending >= UPLOADS_MAX

    def put(self, checkpoint: Checkpoint) -> None:
        self._pending += 1
        self._waiting.put(checkpoint)

    def stored(self) -> None:
        """The shard's thread has heard of one that is written."""
        self._pending -= 1

    def abandon(self) -> None:
        """Write nothing more. One that is on its way may still arrive; the database decides about it."""
        self._abandoned.set()
        self._waiting.put(None)

    def _run(self) -> None:
        while (checkpoint := self._waiting.get()) is not None:
            try:
                if not self._write(checkpoint):
                    return
            except Exception as error:  # noqa: BLE001 the shard's thread says what becomes of it
                self._on_broken(error)
                return
            self._on_stored(checkpoint)

    def _write(self, checkpoint: Checkpoint) -> bool:
        """Until it is written. False: it was abandoned. Raises what no waiting mends."""
        faults = 0
        while not self._abandoned.is_set():
            wait_s = LISTING_RETRY_S
            if self._is_trusted():
                try:
                    self._commit(checkpoint)
                    return True
                except (DatabaseUnavailable, StorageError) as error:
                    if not may_pass(error):
                        raise
                    self._say(error)
                    if isinstance(error, StorageError):
                        faults += 1
                        wait_s = retry_delay_s(faults, self._shard)
            self._abandoned.wait(wait_s)
        return False

    def _say(self, error: DatabaseUnavailable | StorageError) -> None:
        log.warning(
            "checkpoint waits",
            extra={"action": "checkpoint_waits", "shard": self._shard, "reason": error.message},
        )


def may_pass(error: DatabaseUnavailable | StorageError) -> bool:
    """Whether to wait for the database or for our own store, or the operator to mend it."""
    return isinstance(error, DatabaseUnavailable) or storage_verdict(error, in_our_store=True) != "fail"
