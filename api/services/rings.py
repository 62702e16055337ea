"""Sends rings after their commit; failed ones stay in the outbox for the scheduler.

Sent rings are deleted from the outbox in batches: a commit each would cost every request another wait for the
disk and, on SQLite with its one writer, delay the claim. The scheduler resends what it finds after a second
(`outbox_age_s`), and a duplicate finds nothing to claim.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from opentelemetry.trace import Span, SpanKind

from nightshift.broker.hints import HintPublisher
from nightshift.broker.queue import Queue
from nightshift.errors import DatabaseUnavailable, QueueUnavailable
from nightshift.jobs.shard import Ring
from nightshift.process import failpoints
from nightshift.process.tracing.spans import end, follow, is_on, traceparent_of
from nightshift.store import Store

log = logging.getLogger(__name__)

# The pause after a failed send: an unreachable Redis delays one request, not all.
RING_PAUSE_S: Final = 2.0

DELETE_AFTER_S: Final = 0.2  # rings sent within this time are deleted in one commit
CLOSE_S: Final = 2.0
SENT_MAX: Final = 1000  # waiting for deletion; the scheduler handles the rest


class RingSender:
    """Sends rings and hints; does not raise when Redis is away. Thread-safe."""

    def __init__(self, queue_: Queue, hint_publisher: HintPublisher, store: Store) -> None:
        self._queue = queue_
        self._hint_publisher = hint_publisher
        self._store = store
        self._rests_until_s = 0.0
        self._sent: queue.Queue[int | None] = queue.Queue(SENT_MAX)  # ids; None: the end
        self._thread = threading.Thread(target=self._run, name="rings", daemon=True)
        self._thread.start()

    def send(self, rings: Sequence[Ring]) -> bool:
        """Sends committed rings. False: the scheduler will send them."""
        if not rings or time.monotonic() < self._rests_until_s:
            return False
        spans = _begin_spans(rings) if is_on() else ()
        try:
            self._queue.ring([_sent_by(span, ring) for span, ring in spans] or rings)
        except QueueUnavailable as error:
            _end_all(spans, type(error).__name__)
            self._rests_until_s = time.monotonic() + RING_PAUSE_S
            log.warning("the queue is away; work waits in the outbox", extra={"action": "ring_failed"})
            return False
        _end_all(spans)
        failpoints.hit("api.rung")
        for ring in rings:
            try:
                self._sent.put_nowait(ring.id)
            except queue.Full:
                break
        return True

    def hint(self) -> None:
        """Tells workers to read a committed stop order now, before their next heartbeat."""
        if time.monotonic() >= self._rests_until_s and not self._hint_publisher.publish():
            self._rests_until_s = time.monotonic() + RING_PAUSE_S

    def close(self) -> None:
        """Deletes the sent rings from the outbox, within `CLOSE_S`."""
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
        """This ring and those sent within `DELETE_AFTER_S`, and whether more may follow."""
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


def _begin_spans(rings: Sequence[Ring]) -> Sequence[tuple[Span, Ring]]:
    return [(follow(ring.traceparent, "ring", kind=SpanKind.PRODUCER), ring) for ring in rings]


def _sent_by(span: Span, ring: Ring) -> Ring:
    """The ring, which names the span if there is one."""
    context = span.get_span_context()
    return replace(ring, traceparent=traceparent_of(context)) if context.is_valid else ring


def _end_all(spans: Sequence[tuple[Span, Ring]], error: str | None = None) -> None:
    for span, _ in spans:
        end(span, error=error)
