"""Rows of one job with the same digest are run once by this worker: the others wait for the first one.

lead ──► its result is known
     ├─► True: this row runs ──► `ended` with the result, told to those that wait
     └─► False: `wait`            └── `failed`: all that wait run; `leave_off`: the next one does
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Final

from nightshift.bulk.results.row_results import RowResult

WAITING_MAX: Final = 1024  # rows of a shard that wait for others
KNOWN_BYTES_MAX: Final = 16 * 1024 * 1024  # of results, of all jobs; the oldest are forgotten
ENTRY_BYTES: Final = 1024  # of a result without its texts and vectors

Key = tuple[str, bytes]
"""A job, and a digest."""


@dataclass(eq=False, slots=True)
class Turn:
    """Of a row that waits for another."""

    key: Key
    on_end: Callable[[RowResult | None], None]
    """Called once: with the result of the row that ran, or None, and then this one runs."""
    leads: bool = False  # others wait for it now


class RunOnce:
    """Thread-safe. Callbacks are called from any thread and must return at once."""

    def __init__(self, known_bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self._known_bytes_max = known_bytes_max
        self._lock = threading.Lock()
        self._running: dict[Key, list[Turn] | None] = {}  # with those that wait
        self._known: OrderedDict[Key, RowResult] = OrderedDict()
        self._known_bytes = 0

    def lead(self, key: Key) -> RowResult | bool:
        """A known result; or whether a row is to be run, and its caller calls `ended`, `failed` or
        `leave_off`.
        """
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            if key in self._running:
                return False
            self._running[key] = None
            return True

    def wait(self, key: Key, on_end: Callable[[RowResult | None], None]) -> Turn | None:
        """For the row that runs; its caller calls `leave` unless it was told. None: none runs any more."""
        with self._lock:
            if key not in self._running:
                return None
            turn = Turn(key, on_end)
            self._running[key] = [*(self._running[key] or ()), turn]
            return turn

    def ended(self, key: Key, result: RowResult) -> None:
        """A row that was to be run has a good result."""
        with self._lock:
            waiting = self._running.pop(key)
            self._remember(key, result)
        for turn in waiting or ():
            turn.on_end(result)

    def failed(self, key: Key) -> None:
        """A row has a result that is not good: the others are not kept waiting to fail one by one."""
        with self._lock:
            waiting = self._running.pop(key)
        for turn in waiting or ():
            turn.on_end(None)

    def leave_off(self, key: Key) -> None:
        """A row that was to be run has no result here."""
        following: Turn | None = None
        with self._lock:
            waiting = self._running.pop(key)
            if waiting:
                following, *rest = waiting
                following.leads = True
                self._running[key] = rest
        if following is not None:
            following.on_end(None)

    def leave(self, turn: Turn) -> None:
        """A row waits no more, or does not run though it may."""
        with self._lock:
            if not turn.leads:
                waiting = self._running.get(turn.key)
                if waiting and turn in waiting:
                    waiting.remove(turn)
                return
        self.leave_off(turn.key)

    def _remember(self, key: Key, result: RowResult) -> None:
        result = replace(result, kept=None, custom_id="")  # its own row's
        self._known[key] = result
        self._known_bytes += _bytes_of(result)
        while self._known_bytes > self._known_bytes_max:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _bytes_of(oldest)


def _bytes_of(result: RowResult) -> int:
    return ENTRY_BYTES + sum(map(getsizeof, result.values.values())) + getsizeof(result.body_text)
