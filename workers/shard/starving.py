"""How long engines stood still although a shard for them was held: they waited for its rows, or its store."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Model:
    held: int = 0  # shards
    since_s: float = 0.0  # held at least one …
    busy_before_s: float = 0.0  # … with so much time in steps by then
    starved_s: float = 0.0  # before that


class Starvation:
    """Thread-safe."""

    def __init__(self, busy_s: Callable[[str], float], clock_s: Callable[[], float] = time.monotonic) -> None:
        """`busy_s`: how long a model's engine has been in steps; of one that is not loaded, 0."""
        self._busy_s = busy_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}

    def begin(self, model_id: str) -> None:
        """A shard is held."""
        with self._lock:
            found = self._models.setdefault(model_id, _Model())
            found.held += 1
            if found.held == 1:
                found.since_s, found.busy_before_s = self._clock_s(), self._busy_s(model_id)

    def end(self, model_id: str) -> None:
        """And no longer."""
        with self._lock:
            found = self._models[model_id]
            assert found.held > 0, f"no shard of {model_id} is held"
            found.held -= 1
            if found.held == 0:
                found.starved_s += self._since_begin_s(model_id, found)

    def seconds(self) -> dict[str, float]:
        """By model, since the start."""
        with self._lock:
            return {
                id: found.starved_s + (self._since_begin_s(id, found) if found.held else 0.0)
                for id, found in self._models.items()
            }

    def _since_begin_s(self, model_id: str, found: _Model) -> float:
        busy_s = max(
            0.0, self._busy_s(model_id) - found.busy_before_s
        )  # less than before: it was loaded anew
        return max(0.0, self._clock_s() - found.since_s - busy_s)
