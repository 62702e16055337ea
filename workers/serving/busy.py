"""The gain of one clock on another within the last seconds: an engine's time in steps, say."""

import threading
from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
SPACING_S: Final = 1.0  # between samples that are kept


class RecentShare:
    """The share of the last `WINDOW_S` seconds of a clock, or a little more, that another one had; both only
    go on. Thread-safe.
    """

    def __init__(self, clock_s: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._samples = deque([(clock_s, 0.0)])

    def note(self, clock_s: float, part_s: float) -> None:
        with self._lock:
            if clock_s - self._samples[-1][0] < SPACING_S:
                return
            self._samples.append((clock_s, part_s))
            while len(self._samples) > 1 and self._samples[1][0] <= clock_s - WINDOW_S:
                self._samples.popleft()

    def at(self, clock_s: float, part_s: float) -> float | None:
        """The share at this time. None: no time has passed."""
        with self._lock:
            since_s, before_s = self._samples[0]
            for sample_s, part_then_s in self._samples:
                if sample_s <= clock_s - WINDOW_S:
                    since_s, before_s = sample_s, part_then_s
        return (part_s - before_s) / (clock_s - since_s) if clock_s > since_s else None
