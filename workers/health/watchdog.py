"""Finds that this process lives and does nothing: an engine step or a load that does not end, a consumer that
receives no messages, a thread that has ended.

A look counts for two seconds at most: in a process that was stopped (SIGSTOP, a frozen machine), nothing has
lasted too long.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nightshift.broker.queue import BULK_QUEUE, ONLINE_QUEUE
from nightshift.errors import QueueUnavailable
from nightshift.fleet.workers import (
    EXIT_ENGINE_DIED,
    EXIT_QUEUE_CONNECTION_LOST,
    EXIT_STUCK_STEP,
)
from nightshift.jobs.priorities import Room

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
QUEUE_LOOK_S: Final = 5.0  # the queue's length costs a connection


@dataclass(frozen=True)
class Finding:
    exit_code: int
    reason: str


class Check(Protocol):
    def look(self, passed_s: float) -> Finding | None:
        """`passed_s`: time since the last look."""


class Watchdog:
    """Looks every second, until it has found something or is stopped."""

    def __init__(
        self,
        checks: Sequence[Check],
        on_finding: Callable[[Finding], None],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks = checks
        self._on_finding = on_finding
        self._clock_s = clock_s
        self._looked_at_s = clock_s()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._looked_at_s = self._clock_s()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> Finding | None:
        now_s = self._clock_s()
        passed_s = min(now_s - self._looked_at_s, 2 * LOOK_S)
        self._looked_at_s = now_s
        findings = [check.look(passed_s) for check in self._checks]
        return next((finding for finding in findings if finding is not None), None)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                finding = self.look()
            except Exception:
                log.exception("watchdog stumbled", extra={"action": "watchdog_stumbled"})
                continue
            if finding is not None:
                self._on_finding(finding)
                return


class Stuck:
    """Finds that something under way has been seen for too long: a step of an engine, or the load of a lazy
    model from a file system that does not answer, or by code that does not end.
    """

    def __init__(
        self,
        under_way: Callable[[], Mapping[str, float | None]],
        limit_s: float,
        exit_code: int = EXIT_STUCK_STEP,
    ) -> None:
        """`under_way`: when what has a name began, None where nothing of that name is under way; another
        beginning is another thing. `limit_s` 0: nothing is stuck.
        """
        self._under_way = under_way
        self._limit_s = limit_s
        self._exit_code = exit_code
        self._seen: dict[str, tuple[float, float]] = {}  # its beginning, and for how long it was seen

    def look(self, passed_s: float) -> Finding | None:
        for name, began_s in self._under_way().items():
            seen_s = self._seen_s(name, began_s, passed_s)
            if 0 < self._limit_s <= seen_s:
                return Finding(self._exit_code, f"{name} has not ended for {seen_s:.0f} s")
        return None

    def _seen_s(self, name: str, began_s: float | None, passed_s: float) -> float:
        if began_s is None:
            self._seen.pop(name, None)
            return 0.0
        known_began_s, seen_s = self._seen.get(name, (None, 0.0))
        seen_s = seen_s + passed_s if known_began_s == began_s else 0.0
        self._seen[name] = (began_s, seen_s)
        return seen_s


class DeadThread:
    """A thread that ended with an exception."""

    def __init__(self, alive: Mapping[str, Callable[[], bool]]) -> None:
        self._alive = alive

    def look(self, passed_s: float) -> Finding | None:
        for name, is_alive in self._alive.items():
            if not is_alive():
                return Finding(EXIT_ENGINE_DIED, f"the thread `{name}` has ended")
        return None


class QueueLengths(Protocol):
    def lengths(self, queues: Sequence[str]) -> Sequence[int]:
        """Raises QueueUnavailable."""


class SilentConsumer:
    """Finds a consumer that has received no message for too long, while Redis answers and work waits that
    there are places for.

    Consumers that stay connected and consume nothing have long been reported of Celery. Polling finds the
    work meanwhile, seconds later.
    """

    def __init__(
        self,
        queue: QueueLengths,
        received: Callable[[], int],
        without_message: Callable[[], int],
        subscribed_to: Callable[[], Iterable[str]],
        limit_s: float,
    ) -> None:
        """`received`: messages so far; `without_message`: online requests found by polling; `subscribed_to`:
        the queues there are free places for. `limit_s` 0: no consumer is silent.
        """
        self._queue = queue
        self._received = received
        self._without_message = without_message
        self._subscribed_to = subscribed_to
        self._limit_s = limit_s
        self._received_before, self._without_message_before = received(), without_message()
        self._silent_s = 0.0  # while work waited
        self._since_asked_s = 0.0

    def look(self, passed_s: float) -> Finding | None:
        if not self._limit_s:
            return None
        received = self._received()
        if received != self._received_before:
            self._received_before, self._without_message_before = received, self._without_message()
            self._silent_s = self._since_asked_s = 0.0
            return None
        self._since_asked_s += passed_s
        if self._since_asked_s < QUEUE_LOOK_S:
            return None
        self._silent_s = self._silent_s + self._since_asked_s if self._work_waits() else 0.0
        self._since_asked_s = 0.0
        if self._silent_s < self._limit_s:
            return None
        reason = f"messages have waited for {self._silent_s:.0f} s and none was received"
        return Finding(EXIT_QUEUE_CONNECTION_LOST, reason)

    def _work_waits(self) -> bool:
        """Messages in the queues, or requests that a message would have announced."""
        without_message, before = self._without_message(), self._without_message_before
        self._without_message_before = without_message
        try:
            subscribed_to = list(self._subscribed_to())
            waiting = self._queue.lengths(subscribed_to) if subscribed_to else ()
        except QueueUnavailable:
            return False  # nothing could be received
        return without_message > before or any(waiting)


def queues_with_places(online_free: int, bulk_room: Room | None) -> tuple[str, ...]:
    online = (ONLINE_QUEUE,) if online_free > 0 else ()
    return online + ((BULK_QUEUE,) if bulk_room is not None and bulk_room.is_for_all else ())
