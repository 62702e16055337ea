"""How much bulk and interactive requests slow each other down on one engine.

Three things are measured: the time to first token of interactive requests with the engine to themselves, the
same while bulk keeps every slot busy, and the output of bulk with and without them. Requests arrive at random
times (Poisson), and time to first token counts from the time they were due, not from when the engine looked.

    python -m benchmarks.mixing [--workload medium-256] [--dtype bfloat16] [--rate 1] [--seconds 30]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Protocol

from benchmarks.peers import ENGINES, OURS, PRECISIONS
from benchmarks.runners import nightshift
from benchmarks.workloads import DEFAULT_SEED, RECIPES, make_workload
from workers.engine import EngineConfig, Output, Request

INTERACTIVE_OUTPUT_TOKENS = 32
BULK_BACKLOG = 32
"""Bulk requests waiting in the engine beyond those running, so that no slot is ever free for lack of one."""


class SteppedEngine(Protocol):
    """The engine's interface as far as this module uses it."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def step(self) -> list[Output]: ...


class Clock(Protocol):
    """Time, for arrivals."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def wait(self, seconds: float) -> None: ...


class RealClock:
    def now(self) -> float:
        return time.perf_counter()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Load:
    """Requests for an engine, and for how long. The first `ramp_seconds`, bulk alone, are not measured."""

    seconds: float
    ramp_seconds: float
    interactive: Sequence[Request] = ()
    arrival_seconds: Sequence[float] = ()
    """When each interactive request is due, from the end of the ramp."""
    bulk: Iterator[Request] | None = None
    num_bulk_requests: int = 0
    """Bulk requests to keep in the engine, running and waiting."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one load."""

    seconds: float
    bulk_tokens: int
    ttft_seconds: list[float]

    @property
    def bulk_tokens_per_second(self) -> float:
        return self.bulk_tokens / self.seconds


@dataclass(frozen=True)
class Report:
    """The result, in seconds and tokens per second."""

    num_interactive: int
    ttft_p50_alone: float
    ttft_p95_alone: float
    ttft_p50_mixed: float
    ttft_p95_mixed: float
    bulk_alone: float
    bulk_mixed: float


def run(engine: SteppedEngine, load: Load, clock: Clock) -> Measured:
    """Offer the load for its time, and until all interactive requests have a first token; abort the rest."""
    bulk_ids: set[str] = set()
    first_token: dict[str, float] = {}
    due = {request.id: at for request, at in zip(load.interactive, load.arrival_seconds, strict=True)}
    unsent = list(zip(load.arrival_seconds, load.interactive, strict=True))
    interactive_ids: set[str] = set()
    bulk_tokens = 0
    begin = clock.now() + load.ramp_seconds
    while (elapsed := clock.now() - begin) < load.seconds or len(first_token) < len(due):
        while unsent and unsent[0][0] <= elapsed:
            request = unsent.pop(0)[1]
            interactive_ids.add(request.id)
            engine.add(request)
        while load.bulk is not None and len(bulk_ids) < load.num_bulk_requests:
            request = next(load.bulk)
            bulk_ids.add(request.id)
            engine.add(request)
        if not engine.has_work:
            next_event = unsent[0][0] if unsent else load.seconds
            clock.wait(max(0.0, next_event - elapsed))
            continue
        outputs = engine.step()
        elapsed = clock.now() - begin
        for output in outputs:
            if output.id in due and output.token_ids:
                first_token.setdefault(output.id, elapsed)
            elif output.id in bulk_ids and 0 <= elapsed < load.seconds:
                bulk_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                bulk_ids.discard(output.id)
                interactive_ids.discard(output.id)
    for request_id in bulk_ids | interactive_ids:
        engine.abort(request_id)
    while engine.has_work:
        engine.step()
    return Measured(load.seconds, bulk_tokens, [first_token[id] - at for id, at in due.items()])


def measure(
    engine: SteppedEngine,
    clock: Clock,
    workload: str,
    *,
    rate: float,
    seconds: float,
    ramp_seconds: float,
    num_bulk_requests: int,
    seed: int,
    show: Callable[[str], None],
) -> Report:
    """Interactive alone, bulk alone, both, bulk alone again: a drift of the machine affects both sides."""
    arrivals = arrival_times(rate, seconds, seed)
    bulk = bulk_requests(workload, seed)

    def interactive(round: int) -> list[Request]:
        return interactive_requests(workload, len(arrivals), seed + round)

    only_bulk = Load(seconds, ramp_seconds, bulk=bulk, num_bulk_requests=num_bulk_requests)
    show(f"interactive alone: {len(arrivals)} requests in {seconds:.0f} s")
    alone = run(engine, Load(seconds, 0.0, interactive(1), arrivals), clock)
    show("bulk alone")
    before = run(engine, only_bulk, clock)
    show("both")
    mixed = run(engine, replace(only_bulk, interactive=interactive(2), arrival_seconds=arrivals), clock)
    show("bulk alone again")
    after = run(engine, only_bulk, clock)
    return Report(
        num_interactive=len(arrivals),
        ttft_p50_alone=percentile(alone.ttft_seconds, 50),
        ttft_p95_alone=percentile(alone.ttft_seconds, 95),
        ttft_p50_mixed=percentile(mixed.ttft_seconds, 50),
        ttft_p95_mixed=percentile(mixed.ttft_seconds, 95),
        bulk_alone=mean((before.bulk_tokens_per_second, after.bulk_tokens_per_second)),
        bulk_mixed=mixed.bulk_tokens_per_second,
    )


def arrival_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process within `seconds`, at least one; equal for equal arguments."""
    rng = random.Random(seed)
    times = list(itertools.takewhile(lambda at: at < seconds, _running_sum(lambda: rng.expovariate(rate))))
    return times or [seconds / 2]


def interactive_requests(workload: str, count: int, seed: int) -> list[Request]:
    """Chats: the workload's prompts, a fixed short answer, the interactive class."""
    prompts = itertools.islice(_endless(workload, seed + 1_000_000), count)
    return [
        replace(
            request,
            id=f"interactive-{seed}-{index}",
            priority="interactive",
            group=None,
            sampling=replace(request.sampling, max_tokens=INTERACTIVE_OUTPUT_TOKENS),
        )
        for index, request in enumerate(prompts)
    ]


def bulk_requests(workload: str, seed: int) -> Iterator[Request]:
    """The workload repeatedly, with other prompts each time."""
    for index, request in enumerate(_endless(workload, seed)):
        yield replace(request, id=f"bulk-{index}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("values must not be empty")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _endless(workload: str, seed: int) -> Iterator[Request]:
    for offset in itertools.count():
        for request in make_workload(workload, seed + offset).requests:
            yield nightshift.engine_request(request)


def _running_sum(draw: Callable[[], float]) -> Iterator[float]:
    total = 0.0
    while True:
        total += draw()
        yield total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure interactive requests beside bulk on our engine.")
    parser.add_argument("--workload", default="medium-256", choices=list(RECIPES))
    parser.add_argument("--dtype", dest="precision", default="bfloat16", choices=PRECISIONS)
    parser.add_argument("--rate", type=float, default=1.0, help="interactive requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the four parts")
    parser.add_argument("--ramp", type=float, default=10.0, help="seconds of bulk before anything counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--kv-cache-gib", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    nightshift.add_engine_arguments(parser)
    chosen = parser.parse_args(arguments)
    for name in ("rate", "seconds", "threads", "max_num_seqs"):
        if getattr(chosen, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {getattr(chosen, name)}")
    chosen.model = ENGINES[OURS].checkpoint(RECIPES[chosen.workload].model, chosen.precision)
    try:
        engine = nightshift.load_engine(EngineConfig(**nightshift.engine_settings(chosen)), chosen.threads)
    except ValueError as error:
        parser.error(str(error))
    warm = bulk_requests(chosen.workload, chosen.seed + 2_000_000)
    run(engine, Load(2.0, 0.0, bulk=warm, num_bulk_requests=chosen.max_num_seqs), RealClock())
    report = measure(
        engine,
        RealClock(),
        chosen.workload,
        rate=chosen.rate,
        seconds=chosen.seconds,
        ramp_seconds=chosen.ramp,
        num_bulk_requests=chosen.max_num_seqs + BULK_BACKLOG,
        seed=chosen.seed,
        show=lambda text: print(text, "…", flush=True),
    )
    print("| | alone | mixed | mixed / alone |\n|---|--:|--:|--:|")
    for name, alone, mixed in (
        ("TTFT p50, ms", report.ttft_p50_alone * 1e3, report.ttft_p50_mixed * 1e3),
        ("TTFT p95, ms", report.ttft_p95_alone * 1e3, report.ttft_p95_mixed * 1e3),
        ("bulk, output tok/s", report.bulk_alone, report.bulk_mixed),
    ):
        print(f"| {name} | {alone:.0f} | {mixed:.0f} | {mixed / alone:.2f} |")
    print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
