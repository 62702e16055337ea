"""Rows of one job with the same digest are run once by this worker: the others wait for the first one.

ask ──► its result is known
    ├─► a turn that runs ─────────────► `ended` with the result: told to all that wait
    └─► a turn that waits for another      └── or `leave` without one: the next that waits runs
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nightshift.output.row_results import RowResult

KNOWN_BYTES_MAX: Final = 32 * 1024 * 1024  # of results, of all jobs; the oldest are forgotten
ENTRY_BYTES: Final = 1024  # of a result without its texts and vectors

Key = tuple[str, bytes]
"""A job, and a digest."""


@dataclass(eq=False)
class Turn:
    """Of one row."""

    key: Key
    on_end: Callable[[RowResult | None], None]
    """Called once if it waits: with the result of the row that ran, or None, and then it runs."""
    runs: bool


@dataclass
class _Running:
    turn: Turn
    waiting: list[Turn] = field(default_factory=list)


class RunOnce:
    """Thread-safe. Callbacks are called from any thread and must return at once."""

    def __init__(self, known_bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self._known_bytes_max = known_bytes_max
        self._lock = threading.Lock()
        self._running: dict[Key, _Running] = {}
        self._known: OrderedDict[Key, RowResult] = OrderedDict()
        self._known_bytes = 0

    def ask(self, key: Key, on_end: Callable[[RowResult | None], None]) -> RowResult | Turn:
        """The caller of a turn calls `ended` or `leave` for it."""
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            running = self._running.get(key)
            turn = Turn(key, on_end, runs=running is None)
            if running is None:
                self._running[key] = _Running(turn)
            else:
                running.waiting.append(turn)
            return turn

    def ended(self, turn: Turn, result: RowResult) -> None:
        """A turn that runs has a good result."""
        with self._lock:
            assert turn.runs, "it waits"
            running = self._running.pop(turn.key)
            self._remember(turn.key, result)
        for each in running.waiting:
            each.on_end(result)

    def leave(self, turn: Turn) -> None:
        """A row is not run to a good result here, or not waited for."""
        following: Turn | None = None
        with self._lock:
            running = self._running.get(turn.key)
            if running is None:
                return  # it waited, and has been told
            if running.turn is not turn:
                running.waiting = [each for each in running.waiting if each is not turn]
            elif not running.waiting:
                del self._running[turn.key]
            else:
                following = running.turn = running.waiting.pop(0)
                following.runs = True
        if following is not None:
            following.on_end(None)

    def _remember(self, key: Key, result: RowResult) -> None:
        self._known[key] = result
        self._known_bytes += _bytes_of(result)
        while self._known_bytes > self._known_bytes_max:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _bytes_of(oldest)


def _bytes_of(result: RowResult) -> int:
    values = sum(len(value) for value in result.values.values() if value is not None)
    return ENTRY_BYTES + values + len(result.body_text or "")
