"""From POST to the engine: how long an online request is under way while nothing else is, and where.

Every instant is CLOCK_MONOTONIC, which all processes of a machine share: the failpoints on the way write down
when a request comes by, the fake engine when it is given one. Requests come one by one: at random distances,
in which every process on the way, and on a shared machine every cache, goes cold; and, to see what it costs,
each as soon as the one before is done.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import httpx

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
    ("worker.received", "the message through Celery"),
    ("worker.claimed", "claimed and committed"),
    ("admitted", "given to the engine"),
)


def measure(database: Database, requests: int) -> Iterator[Figure]:
    with service_on(database, timed=True) as service:
        sent = list(_submit(service, WARM_UP + requests))[WARM_UP:]
        close = list(_submit_close(service, WARM_UP + requests))[WARM_UP:]
        seen = {**points(service), "admitted": [stamp.at_ns for stamp in admissions(service)]}
    ways = [_way(start_ns, seen) for start_ns, _ in sent]
    whole = [_ms(way["admitted"] - start_ns) for way, (start_ns, _) in zip(ways, sent, strict=True)]
    at_once = [_ms(_way(start_ns, seen)["admitted"] - start_ns) for start_ns in close]
    yield Figure(f"submit to admission, p50 of {requests}", quantile(whole, 0.5), "ms", 10)
    yield Figure("submit to admission, p99", quantile(whole, 0.99), "ms", 40)
    yield Figure("as soon as the one before is done, p50", quantile(at_once, 0.5), "ms")
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
    with service.http() as http:
        for number in range(1, count + 1):
            start_ns = time.monotonic_ns()
            http.post("/v1/jobs", json=_asked(service)).raise_for_status()
            answered_ns = time.monotonic_ns()
            wait_for_admissions(service, number)
            time.sleep(draw.uniform(*PAUSE_S))
            yield start_ns, answered_ns


def _submit_close(service: Service, count: int) -> Iterator[int]:
    """For each request, sent when the one before has been answered by the engine: when that was, in ns."""
    with service.http() as http:
        for _ in range(count):
            start_ns = time.monotonic_ns()
            done = http.post("/v1/jobs", json=_asked(service), headers={"prefer": "wait=30"})
            assert done.status_code == httpx.codes.OK, done.text
            yield start_ns


def _asked(service: Service) -> dict[str, object]:
    message = {"role": "user", "content": "What is the capital of France?"}
    return {
        "endpoint": "chat",
        "body": {"model": service.model, "messages": [message], "max_tokens": 1},
    }


def _way(start_ns: int, seen: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """When this request came by each instant, which nobody else did while it had its turn."""
    return {name: seen[name][bisect_left(seen[name], start_ns)] for name, _ in WAY}


def _ms(ns: int) -> float:
    return ns / 1e6
