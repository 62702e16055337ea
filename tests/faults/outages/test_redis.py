"""Redis forgets, dies, freezes, fills up and repeats itself while jobs run: it rings, and no more than that.

One service for all of it: each test leaves Redis well behind. `make outages` (LONG=1) keeps it away for
five minutes.
"""

import base64
import json
import os
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from nightshift.jobs import Face
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import Job, Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.outages import REDIS, exhaustive_but, paused, wait_until_ended
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for

LASTS_S = 300.0 if os.environ.get("LONG") else 0.0  # at least until everything has been done without Redis
pytestmark = pytest.mark.timeout(300.0 + LASTS_S)
JOBS = 5  # submitted at a time
UNCHARGED = Limits(attempts_max=1)
WORKERS = ("worker-1", "worker-2")
FROZEN = "Redis freezes with every connection open"
ONLINE_KEY = "ns:online"
DROPPED = "messages_dropped"
QUEUES = (ONLINE_KEY, "ns:bulk:4")  # interactive and standard rings


@pytest.fixture(scope="module")
def service(module_service_of: ServiceOf) -> Service:
    return module_service_of(Parts(workers=2))


def submit_some(service: Service, seed: int) -> list[Job]:
    """Jobs of every kind, the first of them accepted at once."""
    with service.http() as http:
        body = {"endpoint": "chat", "body": Row("x", "hello").body(service.model)}
        answer = http.post("/v1/jobs", json=body, timeout=WAIT_MAX_S)
    assert answer.status_code == httpx.codes.ACCEPTED
    jobs: list[Job] = [
        submit_bulk(service, some_rows(40, seed=seed)),
        submit_bulk(service, some_rows(10, seed=seed), face=Face.OPENAI),
        *(submit_online(service, row) for row in some_rows(JOBS - 2, seed=seed)),
    ]
    return jobs


def judge(service: Service, jobs: list[Job]) -> None:
    oracle.judge(service, jobs, UNCHARGED)


@pytest.mark.parametrize("name", exhaustive_but(REDIS, FROZEN, "Redis is killed, and comes back empty"))
def test_work_is_accepted_and_done_without_redis(service: Service, name: str) -> None:
    with ExitStack() as outage:
        with paused(service, *WORKERS):
            jobs = submit_some(service, seed=1)
            outage.enter_context(REDIS[name](service))  # and what had rung is lost, or cannot be heard
        ends_at_s = time.monotonic() + LASTS_S
        while len(jobs) < 2 * JOBS or time.monotonic() < ends_at_s:
            jobs += submit_some(service, seed=len(jobs))
            wait_until_ended(service, jobs)
    ended_s = time.monotonic()
    judge(service, jobs)

    print(f"{name}: nothing was owed to it any more after {time.monotonic() - ended_s:.1f} s")


def test_a_worker_comes_and_goes_without_redis(service: Service) -> None:
    """It neither waits for Redis before it works, nor hangs on it when it is to go."""
    with REDIS["Redis is killed, and comes back as it was"](service):
        with service.http() as http:
            ready = http.get("/readyz", timeout=WAIT_MAX_S)
        jobs = submit_some(service, seed=50)
        assert service.restart("worker-1") == 0
        service.wait_until_ready()
        wait_until_ended(service, jobs)  # or the lease of what worker-2 still runs would expire
        with paused(service, "worker-2"):
            jobs += submit_some(service, seed=51)
            wait_until_ended(service, jobs)
    assert (ready.status_code, ready.json()["status"]) == (httpx.codes.OK, "degraded")
    judge(service, jobs)


# -- messages ------------------------------------------------------------------------------------------


def rings(service: Service) -> dict[str, list[Any]]:
    """Messages in the queues."""
    return {name: service.redis.client.lrange(name, 0, -1) for name in QUEUES}


def test_every_message_comes_ten_times(service: Service) -> None:
    with paused(service, *WORKERS):
        jobs = submit_some(service, seed=60)
        wait_for("rings of both kinds", lambda: all(rings(service).values()))
        for name, messages in rings(service).items():
            for message in messages:
                service.redis.client.lpush(name, *[message] * 9)

    judge(service, jobs)


def of_ours(service: Service) -> dict[str, Any]:
    """An online ring as the API sends it."""
    with paused(service, *WORKERS):
        submit_online(service, Row("one", "whose ring is borrowed"))
        wait_for("a ring", lambda: rings(service)[ONLINE_KEY])
        ring: dict[str, Any] = json.loads(rings(service)[ONLINE_KEY][0])
    return ring


def strangers(ring: dict[str, Any]) -> list[bytes]:
    """Bytes that any client may put into a queue, and that are no message of ours."""
    headers, properties = ring["headers"], ring["properties"]
    changed: list[object] = [
        {**ring, "content-type": "application/x-python-serialize"},
        {**ring, "content-type": "text/of-tomorrow"},
        {**ring, "body": "bm90IGpzb24="},  # not json
        {**ring, "body": "Nw=="},  # 7
        {**ring, "body": "no base64"},
        {**ring, "body": 7},
        {**ring, "headers": {**headers, "task": "nightshift.of_tomorrow"}},
        {**ring, "headers": {**headers, "eta": "tomorrow", "expires": []}},
        {**ring, "headers": {}},
        {**ring, "headers": 7},
        {**ring, "properties": {}},
        {**ring, "properties": {**properties, "delivery_tag": None, "delivery_info": 7}},
        {},
        [],
        7,
        None,
    ]
    return [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[" * 100_000,
        *(json.dumps(message).encode() for message in changed),
    ]


def test_messages_that_make_no_sense_are_dropped_and_counted_and_the_worker_lives(service: Service) -> None:
    strange = strangers(of_ours(service))
    before, pids = service.counter(DROPPED), [service.pid(role) for role in WORKERS]

    service.redis.client.lpush(ONLINE_KEY, *strange)
    jobs = submit_some(service, seed=70)
    judge(service, jobs)

    wait_for(f"{len(strange)} are counted", lambda: service.counter(DROPPED) - before >= len(strange))
    assert [service.pid(role) for role in WORKERS] == pids


def test_what_a_later_release_says_besides_is_no_concern_of_ours(service: Service) -> None:
    """While a fleet is upgraded, its schedulers ring for today's workers."""
    before = service.counter(DROPPED)
    with paused(service, *WORKERS):
        jobs = submit_some(service, seed=80)
        wait_for("rings of both kinds", lambda: all(rings(service).values()))
        for name, messages in rings(service).items():
            service.redis.client.delete(name)
            service.redis.client.lpush(name, *(of_tomorrow(message) for message in messages))

    judge(service, jobs)
    assert service.counter(DROPPED) == before


def of_tomorrow(message: bytes) -> bytes:
    """Returns the message with one more argument, one more header and one more property."""
    ring = json.loads(message)
    arguments, keywords, embedded = json.loads(base64.b64decode(ring["body"]))
    body = [[*arguments, {"hint": "warm"}], {**keywords, "colour": "red"}, embedded]
    ring |= {"body": base64.b64encode(json.dumps(body).encode()).decode(), "version": 9}
    ring["headers"]["nightshift-release"] = "tomorrow"
    ring["properties"]["colour"] = "red"
    return json.dumps(ring).encode()
