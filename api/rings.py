"""Tells the workers at once what the outbox would tell them later.

A ring that was sent is taken out of the outbox a moment afterwards, together with all others of that moment.
A commit of its own would cost every request one more wait for the disk, and on SQLite, which has one writer
at a time, hold up the very claim it has just rung for. What stays behind is rung again by the scheduler,
which gives us a second (`outbox_age_s`), and finds nothing left to claim.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nightshift.broker.hints import HintPublisher
from nightshift.broker.queue import Queue
from nightshift.errors import DatabaseUnavailable, QueueUnavailable
from nightshift.processes import failpoints
from nightshift.store import Store
from nightshift.store.shards.outbox import Ring

log = logging.getLogger(__name__)

# After a failed ring nobody rings for so long: a dead Redis costs one request a wait, not every request.
DOORBELL_REST_S: Final = 2.0

DELETE_AFTER_S: Final = 0.2  # from the first ring sent: how many go in one commit
CLOSE_S: Final = 2.0
SENT_MAX: Final = 1000  # sent and not deleted; what is more than that stays for the scheduler


class Doorbell:
    """It may fail; it may not delay. Thread-safe."""

    def __init__(self, queue_: Queue, hint_publisher: HintPublisher, store: Store) -> None:
        self._queue = queue_
        self._hint_publisher = hint_publisher
        self._store = store
        self._rests_until_s = 0.0
        self._sent: queue.Queue[int | None] = queue.Queue(SENT_MAX)  # ids; None: no more will come
        self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
        self._thread.start()

    def ring(self, rings: Sequence[Ring]) -> bool:
        """Send committed rings. False: the scheduler will send them."""
        if not rings or time.monotonic() < self._rests_until_s:
            return False
        try:
            self._queue.ring(rings)
        except QueueUnavailable:
            self._rests_until_s = time.monotonic() + DOORBELL_REST_S
            log.warning("the queue is away; work waits in the outbox", extra={"action": "ring_failed"})
            return False
        failpoints.hit("api.rung")
        for ring in rings:
            try:
                self._sent.put_nowait(ring.id)
            except queue.Full:
                break
        return True

    def hint(self) -> None:
        """A job was told to stop, and that is committed: its workers need not wait for their next look."""
        if time.monotonic() >= self._rests_until_s and not self._hint_publisher.publish():
            self._rests_until_s = time.monotonic() + DOORBELL_REST_S

    def close(self) -> None:
        """Take what was sent out of the outbox, if the database can be reached soon."""
        with suppress(queue.Full):
            self._sent.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (first := self._sent.get()) is not None:
            ring_ids, is_open = self._gather(first)
            self._delete(ring_ids)
            if not is_open:
                return

    def _gather(self, first: int) -> tuple[Sequence[int], bool]:
        """This one and those that are sent soon after it, and whether more may come."""
        ring_ids = [first]
        ends_at_s = time.monotonic() + DELETE_AFTER_S
        while (left_s := ends_at_s - time.monotonic()) > 0:
            try:
                following = self._sent.get(timeout=left_s)
            except queue.Empty:
                break
            if following is None:
                return ring_ids, False
            ring_ids.append(following)
        return ring_ids, True

    def _delete(self, ring_ids: Sequence[int]) -> None:
        try:
            self._store.run(lambda tx: tx.outbox.delete(ring_ids))
        except DatabaseUnavailable:
            log.warning("rings were sent and stay in the outbox", extra={"action": "ring_kept"})
