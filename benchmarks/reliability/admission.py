"""From POST to the engine: how long an online request is under way while nothing else is, and where.

Every instant is CLOCK_MONOTONIC, which all processes of a machine share: the failpoints on the way write down
when a request comes by, the fake engine when it is given one. Requests come one by one, at random distances.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.reliability.figures import Figure, quantile
from benchmarks.reliability.services import Database, admissions, points, service_on, wait_for_admissions
from tests.faults.service import Service

SEED = 1
WARM_UP = 30
PAUSE_S = (0.03, 0.06)

# The way of a request, as (instant, what ends there).
WAY = (
    ("api.before_commit", "request read, checked and written"),
    ("api.committed", "commit"),
    ("worker.fetched", "ring, and the message fetched"),
    ("worker.received", "the message noted as under way"),
    ("worker.claimed", "claimed and committed"),
    ("admitted", "given to the engine"),
)


def measure(database: Database, requests: int) -> Iterator[Figure]:
    with service_on(database, timed=True) as service:
        sent = list(_submit(service, WARM_UP + requests))[WARM_UP:]
        seen = {**points(service), "admitted": [stamp.at_ns for stamp in admissions(service)]}
    ways = [_way(start_ns, seen) for start_ns, _ in sent]
    whole = [_ms(way["admitted"] - start_ns) for way, (start_ns, _) in zip(ways, sent, strict=True)]
    yield Figure(f"submit to admission, p50 of {requests}", quantile(whole, 0.5), "ms", 10)
    yield Figure("submit to admission, p99", quantile(whole, 0.99), "ms", 40)
    answered = [_ms(answered_ns - start_ns) for start_ns, answered_ns in sent]
    yield Figure("submit to 202, p50", quantile(answered, 0.5), "ms")
    before = [start_ns for start_ns, _ in sent]
    for name, what in WAY:
        steps = [_ms(way[name] - since) for way, since in zip(ways, before, strict=True)]
        before = [way[name] for way in ways]
        yield Figure(f"  {what}, p50", quantile(steps, 0.5), "ms")
        yield Figure(f"  {' ' * len(what)}  p99", quantile(steps, 0.99), "ms")


def _submit(service: Service, count: int) -> Iterator[tuple[int, int]]:
    """For each request: when it was sent, when it was answered, in ns."""
    draw = random.Random(SEED)
    message = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": service.model, "messages": [message], "max_tokens": 1}
    with service.http() as http:
        for number in range(1, count + 1):
            start_ns = time.monotonic_ns()
            http.post("/v1/jobs", json={"endpoint": "chat", "body": body}).raise_for_status()
            answered_ns = time.monotonic_ns()
            wait_for_admissions(service, number)
            time.sleep(draw.uniform(*PAUSE_S))
            yield start_ns, answered_ns


def _way(start_ns: int, seen: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """When this request came by each instant, which nobody else did while it had its turn."""
    return {name: seen[name][bisect_left(seen[name], start_ns)] for name, _ in WAY}


def _ms(ns: int) -> float:
    return ns / 1e6
