"""The figures that a worker tells of itself with its heartbeats (`nightshift/fleet/figures.py`)."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import (
    DURATIONS_WINDOW_S,
    RATES_WINDOW_S,
    DeviceFigures,
    ModelFigures,
    WorkerFigures,
)
from nightshift_engine import Histogram
from workers.online.times import OnlineTimes
from workers.serving.model_server import ModelServer

BULK: Final = "bulk"
ONLINE: Final = "online"

CountsByModel = Callable[[], Mapping[str, float]]


SPACING_S: Final = 1.0  # between samples that are kept: heartbeats may follow each other closely


class Window:
    """Samples of counters by name, taken by one thread."""

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
        """Rises from the first sample to the last. A counter that fell began anew, at 0."""
        if not self._samples:
            return {}
        first, last = self._samples[0][1], self._samples[-1][1]
        before = {name: first.get(name, 0.0) for name in last}
        return {
            name: value - before[name] if value >= before[name] else value for name, value in last.items()
        }

    def rates(self) -> dict[str, float]:
        """Rises per second; empty until there are two samples."""
        seconds = self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0
        return {name: rise / seconds for name, rise in self.rises().items()} if seconds > 0 else {}


class Figures:
    """Thread-safe. Reads what engines and requests count anyway: nothing is added to their paths."""

    def __init__(
        self,
        servers: Callable[[], Iterable[ModelServer]],
        held: Callable[[], Mapping[str, int]],
        online: OnlineTimes,
        *,
        rows_finished: CountsByModel = dict,
        starved_seconds: CountsByModel = dict,
        device: Callable[[], DeviceFigures | None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`held`: how many leases of each kind this worker has. `rows_finished`, `starved_seconds`: of bulk
        shards, by model, since the start.
        """
        self._servers = servers
        self._held = held
        self._online = online
        self._rows_finished = rows_finished
        self._starved_seconds = starved_seconds
        self._device = device
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._rates = Window(RATES_WINDOW_S)
        self._durations = Window(DURATIONS_WINDOW_S)

    def now(self) -> WorkerFigures:
        with self._lock:
            now_s = self._clock_s()
            self._rates.add(now_s, dict(self._counters()))
            self._durations.add(now_s, dict(self._observed()))
            rates, rises = self._rates.rates(), self._durations.rises()
        held = self._held()
        return WorkerFigures(
            models={server.model.id: self._of_model(server, rates, rises) for server in self._servers()},
            device=self._device(),
            memory_bytes=resident_bytes(),
            shards=held.get(BULK),
            requests=held.get(ONLINE),
        ).limited()

    def _counters(self) -> Iterator[tuple[str, float]]:
        """Counters of each model, by `name model`."""
        for server in self._servers():
            if server.histograms is not None:
                of_classes = list(server.histograms.by_class.values())
                yield f"prompt {server.model.id}", sum(counts.prompt_tokens for counts in of_classes)
                yield f"generation {server.model.id}", sum(counts.generation_tokens for counts in of_classes)
        rows = dict(self._rows_finished())
        for (model, _), times in self._online:
            rows[model] = rows.get(model, 0) + times.request_s.count
        yield from ((f"rows {model}", count) for model, count in rows.items())
        yield from ((f"starved {model}", seconds) for model, seconds in self._starved_seconds().items())

    def _observed(self) -> Iterator[tuple[str, float]]:
        """Observations in each bucket, for each model, class and kind of duration."""
        for (model, priority), times in self._online:
            for kind, histogram in (("first", times.first_token_s), ("request", times.request_s)):
                for place, count in enumerate(histogram.counts):
                    yield _bucket(kind, priority, place, model), count

    def _of_model(
        self, server: ModelServer, rates: Mapping[str, float], rises: Mapping[str, float]
    ) -> ModelFigures:
        id, stats = server.model.id, server.engine_stats
        starved = rates.get(f"starved {id}")
        return ModelFigures(
            running=getattr(stats, "running", None),
            waiting=getattr(stats, "waiting", None),
            kv_blocks_used=getattr(stats, "blocks_used", None),
            kv_blocks=getattr(stats, "blocks_total", None),
            busy_fraction=server.busy_fraction,
            starved_fraction=None if starved is None else min(1.0, starved),
            prompt_tokens_per_s=rates.get(f"prompt {id}"),
            generation_tokens_per_s=rates.get(f"generation {id}"),
            rows_per_s=rates.get(f"rows {id}"),
            first_token_s=self._durations_of(id, "first", rises),
            request_s=self._durations_of(id, "request", rises),
        )

    def _durations_of(self, model_id: str, kind: str, rises: Mapping[str, float]) -> dict[str, Durations]:
        durations: dict[str, Durations] = {}
        for (model, priority), times in self._online:
            if model == model_id:
                histogram: Histogram = times.first_token_s if kind == "first" else times.request_s
                places = range(len(histogram.counts))
                counts = [int(rises.get(_bucket(kind, priority, place, model), 0)) for place in places]
                durations[priority] = Durations.from_counts(histogram.bounds, counts)
        return durations


def _bucket(kind: str, priority: str, place: int, model: str) -> str:
    return f"{kind} {priority} {place} {model}"


_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Memory of this process. None: the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
