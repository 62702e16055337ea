"""What metrics cost a worker, in tokens per second: turns with them and without, one after the other.

    python -m benchmarks.exporting

With them, histograms are counted, `GET /metrics` is answered every 15 s, as `infra/prometheus` asks, and
the worker's figures are read every 5 s, as it tells them; `--often` does both every second. Without, none of
it is done. The turns of a pair follow each other in one process and change their order, so that the machine's
drift cancels out. On a machine that is not idle the CPU time of a token says more than tokens per second.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, Final

import httpx

from nightshift import endpoints
from nightshift.demo import LARGEST_NUMBER, demo_model_path
from nightshift.endpoints.results import Identity
from nightshift.jobs.priorities import PriorityClass
from nightshift.metrics.serving import MetricsServer
from nightshift.settings import WorkerSettings
from workers.engine.histograms import Histogram
from workers.health.figures import Figures
from workers.health.metrics import WorkerMetrics
from workers.online.times import OnlineTimes
from workers.serving.inference import Progress
from workers.serving.loading import load_models
from workers.serving.model_server import Inference, ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IN_FLIGHT: Final = 64
WARM_UP_S: Final = 5.0
SCRAPE_S: Final = 15.0
FIGURES_S: Final = 5.0
SEED: Final = 7


class Load:
    """Keeps so many chats in the engine, as long as it lives."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._chat = endpoints.get("/v1/chat/completions")
        self._random = random.Random(SEED)
        self._ids = itertools.count()

    def begin(self) -> None:
        for _ in range(IN_FLIGHT):
            self._next()

    def _next(self) -> None:
        number = self._random.randint(0, LARGEST_NUMBER)
        body: dict[str, Any] = {
            "model": self._server.model.id,
            "messages": [{"role": "user", "content": str(number)}],
            "temperature": 0,
        }
        id = f"chat-{next(self._ids)}"
        request, identity = self._chat.parse(body), Identity(id, 0)
        heard = Inference(id, self._chat, request, identity, PriorityClass.STANDARD, self._heard)
        self._server.submit(heard)

    def _heard(self, progress: Progress) -> None:
        if progress.result is not None or progress.failed is not None:
            self._next()


@contextmanager
def without_histograms() -> Iterator[None]:
    counted = Histogram.observe
    Histogram.observe = lambda self, value: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Histogram.observe = counted  # type: ignore[method-assign]


@contextmanager
def scraped(port: int, figures: Figures, *, often: bool) -> Iterator[None]:
    """The first scrape and the first figures come in the middle of their intervals."""
    ended = threading.Event()

    def every(interval_s: float, do: Callable[[], object]) -> None:
        wait_s = interval_s / 2
        while not ended.wait(wait_s):
            do()
            wait_s = interval_s

    with httpx.Client(trust_env=False) as client:

        def scrape() -> None:
            client.get(f"http://127.0.0.1:{port}/metrics").raise_for_status()

        duties = [(SCRAPE_S, scrape), (FIGURES_S, lambda: figures.now().to_json())]
        threads = [threading.Thread(target=every, args=(1.0 if often else s, do)) for s, do in duties]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@dataclass(frozen=True)
class Speed:
    tokens_per_s: float
    cpu_us_per_token: float  # of the whole process: scrapes, their client and the engine


def speed(server: ModelServer, seconds: float) -> Speed:
    before, began_s, cpu_s = _generated(server), time.perf_counter(), time.process_time()
    time.sleep(seconds)
    tokens = _generated(server) - before
    passed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return Speed(tokens / passed_s, 1e6 * cpu_s / tokens)


def _generated(server: ModelServer) -> int:
    generated: int = getattr(server.engine_stats, "tokens_generated", 0)
    return generated


def measure(pairs: int, seconds: float, *, often: bool) -> list[tuple[Speed, Speed]]:
    """Of each pair, with and without."""
    settings = WorkerSettings(device="cpu", models=(str(demo_model_path()),))
    [server] = load_models(settings, lambda error: None)
    assert isinstance(server, ModelServer), "it is loaded at once"
    online = OnlineTimes()
    figures = Figures(lambda: [server], dict, online)
    metrics = MetricsServer(WorkerMetrics(lambda: [server], dict, lambda: False, online).registry)
    found: list[tuple[Speed, Speed]] = []
    with ExitStack() as stack:
        port = metrics.open_port(0, "WORKER_METRICS_PORT")
        stack.callback(metrics.close)
        server.start()
        stack.callback(server.stop)
        Load(server).begin()
        time.sleep(WARM_UP_S)
        for turn in range(pairs):
            speeds: dict[bool, Speed] = {}
            for is_on in (True, False) if turn % 2 else (False, True):
                with scraped(port, figures, often=often) if is_on else without_histograms():
                    speeds[is_on] = speed(server, seconds)
            found.append((speeds[True], speeds[False]))
    return found


def _show(what: str, shares: Sequence[float]) -> None:
    error = stdev(shares) / len(shares) ** 0.5
    print(f"{what:20} {100 * mean(shares):+6.2f} % ± {100 * error:.2f}, median {100 * median(shares):+.2f} %")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exporting", description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=SCRAPE_S, help="of each turn")
    parser.add_argument("--often", action="store_true", help="scrape and tell every second")
    chosen = parser.parse_args(arguments)
    found = measure(chosen.pairs, chosen.seconds, often=chosen.often)
    _show("tokens/s lost", [1 - on.tokens_per_s / off.tokens_per_s for on, off in found])
    _show("CPU time of a token", [on.cpu_us_per_token / off.cpu_us_per_token - 1 for on, off in found])
    print(f"without          {mean(off.tokens_per_s for _, off in found):8.0f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
