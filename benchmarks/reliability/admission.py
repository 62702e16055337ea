"""How long an online request takes from POST to the engine while nothing else runs, and in which stage.

Instants are CLOCK_MONOTONIC, which all processes of a machine share: failpoints record when a request passes,
the fake engine when it gets one. Requests come one at a time: after random pauses, in which processes sleep
and caches grow cold, and, for comparison, each as soon as the one before is done.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import httpx

from benchmarks.reliability.services import Database, admissions, points, service_on, wait_for_admissions
from benchmarks.report import Figure, quantile
from tests.faults.kit.service import Service

SEED = 1
WARM_UP = 30
PAUSE_S = (0.03, 0.06)

# The path of a request, as (failpoint, the stage that ends there).
STAGES = (
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
    paths = [_passed(start_ns, seen) for start_ns, _ in sent]
    whole = [_ms(path["admitted"] - start_ns) for path, (start_ns, _) in zip(paths, sent, strict=True)]
    at_once = [_ms(_passed(start_ns, seen)["admitted"] - start_ns) for start_ns in close]
    yield Figure(f"submit to admission, p50 of {requests}", quantile(whole, 0.5), "ms", 10)
    yield Figure("submit to admission, p99", quantile(whole, 0.99), "ms", 40)
    yield Figure("as soon as the one before is done, p50", quantile(at_once, 0.5), "ms")
    answered = [_ms(answered_ns - start_ns) for start_ns, answered_ns in sent]
    yield Figure("submit to 202, p50", quantile(answered, 0.5), "ms")
    before = [start_ns for start_ns, _ in sent]
    for name, what in STAGES:
        steps = [_ms(path[name] - since) for path, since in zip(paths, before, strict=True)]
        before = [path[name] for path in paths]
        yield Figure(f"  {what}, p50", quantile(steps, 0.5), "ms")
        yield Figure(f"  {' ' * len(what)}  p99", quantile(steps, 0.99), "ms")


def _submit(service: Service, count: int) -> Iterator[tuple[int, int]]:
    """When each request was sent and answered, in ns."""
    draw = random.Random(SEED)
    with service.http() as http:
        for number in range(1, count + 1):
            start_ns = time.monotonic_ns()
            http.post("/v1/jobs", json=_request_body(service)).raise_for_status()
            answered_ns = time.monotonic_ns()
            wait_for_admissions(service, number)
            time.sleep(draw.uniform(*PAUSE_S))
            yield start_ns, answered_ns


def _submit_close(service: Service, count: int) -> Iterator[int]:
    """When each request was sent, in ns; each is sent once the one before is done."""
    with service.http() as http:
        for _ in range(count):
            start_ns = time.monotonic_ns()
            done = http.post("/v1/jobs", json=_request_body(service), headers={"prefer": "wait=30"})
            assert done.status_code == httpx.codes.OK, done.text
            yield start_ns


def _request_body(service: Service) -> dict[str, object]:
    message = {"role": "user", "content": "What is the capital of France?"}
    return {
        "endpoint": "chat",
        "body": {"model": service.model, "messages": [message], "max_tokens": 1},
    }


def _passed(start_ns: int, seen: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """When the request that was sent at `start_ns` passed each failpoint: no other one was under way."""
    return {name: seen[name][bisect_left(seen[name], start_ns)] for name, _ in STAGES}


def _ms(ns: int) -> float:
    return ns / 1e6
