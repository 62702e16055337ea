"""Rows of one job with the same digest are run once: the others wait for the first one.

lead ──► its result is known
     ├─► True: this row runs ──► `ended` with the result, told to those that wait
     └─► False: `wait`            └── `failed`: all that wait run; `leave_off`: the next one does

Where another worker runs the first one, `first_results.py` looks for its result, and all rows here wait.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Final

from nightshift.output.row_results import RowResult

WAITING_MAX: Final = 1024  # rows of a shard that wait for others
FAILED_MAX: Final = 4096  # requests whose row had no good result, of all jobs; the oldest are forgotten
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
        self._elsewhere: set[Key] = set()  # of the same: another shard's row runs, and may run elsewhere
        self._failed: OrderedDict[Key, None] = OrderedDict()  # waiting for their first row is of no use
        self._known: OrderedDict[Key, RowResult] = OrderedDict()
        self._known_bytes = 0

    def lead(self, key: Key, *, is_first: bool = True) -> RowResult | bool:
        """A known result; or whether a row is to be run, and its caller calls `ended`, `failed` or
        `leave_off`. `is_first`: whether it is the job's first one, so that no other shard has it.
        """
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            if key not in self._running:
                self._running[key] = None
                if is_first or key in self._failed:
                    return True
                self._elsewhere.add(key)
                return False
            if is_first and key in self._elsewhere:
                self._elsewhere.discard(key)  # it is a shard of this worker that has it
                return True
            return False

    def wait(self, key: Key, on_end: Callable[[RowResult | None], None]) -> Turn | None:
        """For the row that runs, here or elsewhere; its caller calls `leave` unless it was told. None: none
        runs any more.
        """
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
            self._failed[key] = None
            while len(self._failed) > FAILED_MAX:
                self._failed.popitem(last=False)
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
                    if not waiting and turn.key in self._elsewhere:
                        self._elsewhere.discard(turn.key)
                        del self._running[turn.key]
                return
        self.leave_off(turn.key)

    # -- of a row that another shard has

    def is_elsewhere(self, key: Key) -> bool:
        """Whether rows wait for it."""
        with self._lock:
            return key in self._elsewhere

    def found(self, key: Key, result: RowResult) -> None:
        """It has ended. `result` is not good: the others are not kept waiting to fail one by one."""
        if not self._is_back(key):
            return
        if result.succeeded:
            self.ended(key, result)
        else:
            self.failed(key)

    def lost(self, key: Key) -> None:
        """It has no result, and none is expected soon: one of those that wait runs."""
        if self._is_back(key):
            self.leave_off(key)

    def _is_back(self, key: Key) -> bool:
        """Whether it was elsewhere. It is led by the caller then."""
        with self._lock:
            was_elsewhere = key in self._elsewhere
            self._elsewhere.discard(key)
            return was_elsewhere

    def _remember(self, key: Key, result: RowResult) -> None:
        result = replace(result, kept=None, custom_id="")  # its own row's
        self._known[key] = result
        self._known_bytes += _bytes_of(result)
        while self._known_bytes > self._known_bytes_max:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _bytes_of(oldest)


def _bytes_of(result: RowResult) -> int:
    return ENTRY_BYTES + sum(map(getsizeof, result.values.values())) + getsizeof(result.body_text)
