"""How busy an engine has been of late, and how near its steps came to what its device can do."""

import threading
from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
SPACING_S: Final = 1.0  # between samples that are kept


class BusyFraction:
    """Share of the last `WINDOW_S` seconds, or a little more, in which it was in a step. Thread-safe."""

    def __init__(self, now_s: float) -> None:
        """Times are of one monotonic clock."""
        self._lock = threading.Lock()
        self._samples = deque([(now_s, 0.0)])  # time, and seconds busy until then

    def note(self, now_s: float, busy_s: float) -> None:
        """A step has ended; `busy_s` seconds were busy since the start."""
        with self._lock:
            if now_s - self._samples[-1][0] < SPACING_S:
                return
            self._samples.append((now_s, busy_s))
            while len(self._samples) > 1 and self._samples[1][0] <= now_s - WINDOW_S:
                self._samples.popleft()

    def at(self, now_s: float, busy_s: float) -> float:
        """From 0 to 1; `busy_s` includes the step under way."""
        with self._lock:
            since_s, before_s = self._samples[0]
            for time_s, seconds in self._samples:
                if time_s <= now_s - WINDOW_S:
                    since_s, before_s = time_s, seconds
        return min(1.0, max(0.0, (busy_s - before_s) / (now_s - since_s))) if now_s > since_s else 0.0


class RecentShare:
    """What part of the last `WINDOW_S` seconds of a clock another one had; the clocks only go on. One thread
    notes, any may read.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque([(0.0, 0.0)])

    def note(self, clock_s: float, part_s: float) -> None:
        if clock_s - self._samples[-1][0] >= SPACING_S:
            self._samples.append((clock_s, part_s))
        while len(self._samples) > 1 and self._samples[1][0] <= clock_s - WINDOW_S:
            self._samples.popleft()

    def at(self, clock_s: float, part_s: float) -> float | None:
        """None: no time has passed."""
        since_s, before_s = self._samples[0]
        return (part_s - before_s) / (clock_s - since_s) if clock_s > since_s else None
