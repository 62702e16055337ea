"""What counters rose by within the last seconds."""

from collections import deque
from collections.abc import Mapping
from typing import Final

SPACING_S: Final = 1.0  # between samples that are kept: heartbeats may follow each other closely


class Window:
    """Samples of counters by name. For one thread."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def add(self, now_s: float, counters: Mapping[str, float]) -> None:
        """`now_s` ascends."""
        if self._samples and now_s - self._samples[-1][0] < SPACING_S:
            return
        self._samples.append((now_s, counters))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()

    def rises(self) -> dict[str, float]:
        """From the first sample to the last. A counter that fell began anew, at 0."""
        if not self._samples:
            return {}
        first, last = self._samples[0][1], self._samples[-1][1]
        before = {name: first.get(name, 0.0) for name in last}
        return {
            name: value - before[name] if value >= before[name] else value for name, value in last.items()
        }

    def rates(self) -> dict[str, float]:
        """Per second; empty until there are two samples."""
        seconds = self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0
        return {name: rise / seconds for name, rise in self.rises().items()} if seconds > 0 else {}
