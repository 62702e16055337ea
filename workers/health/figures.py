"""What this worker tells of itself with its heartbeats (`nightshift/fleet/figures.py`)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import (
    DURATIONS_WINDOW_S,
    RATES_WINDOW_S,
    DeviceFigures,
    ModelFigures,
    WorkerFigures,
)
from nightshift_engine.core.histograms import Histogram
from workers.health.process_memory import resident_bytes
from workers.health.windows import Window
from workers.online.times import OnlineTimes
from workers.serving.model_server import ModelServer

BULK: Final = "bulk"
ONLINE: Final = "online"

CountsByModel = Callable[[], Mapping[str, float]]


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
        """Of each model, by `name model`."""
        for server in self._servers():
            if server.histograms is not None:
                of_classes = list(server.histograms.by_class.values())
                yield f"prompt {server.model.id}", sum(each.prompt_tokens for each in of_classes)
                yield f"generation {server.model.id}", sum(each.generation_tokens for each in of_classes)
        rows = dict(self._rows_finished())
        for (model, _), times in self._online:
            rows[model] = rows.get(model, 0) + times.request_s.count
        yield from ((f"rows {model}", count) for model, count in rows.items())
        yield from ((f"starved {model}", seconds) for model, seconds in self._starved_seconds().items())

    def _observed(self) -> Iterator[tuple[str, float]]:
        """Of each model, class and kind of duration: how many are in each bucket."""
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
        found: dict[str, Durations] = {}
        for (model, priority), times in self._online:
            if model == model_id:
                histogram: Histogram = times.first_token_s if kind == "first" else times.request_s
                places = range(len(histogram.counts))
                counts = [int(rises.get(_bucket(kind, priority, place, model), 0)) for place in places]
                found[priority] = Durations.of(histogram.bounds, counts)
        return found


def _bucket(kind: str, priority: str, place: int, model: str) -> str:
    return f"{kind} {priority} {place} {model}"
