"""Ten times as much work as there is room for: what is accepted is done, what is not is told when to come
back, no process's memory grows with what is refused, and no tenant pays for another.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import httpx
import pytest
from sqlalchemy import func, select

from nightshift.jobs import JobState
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import Job, OnlineJob, Row, some_rows, submit_bulk, submit_online
from tests.faults.kit.service import Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for

PLACES = 4  # online requests a worker holds
AT_ONCE = 4  # requests its engine runs
WAITING_MAX, WAITING_TOTAL_MAX = 8, 12  # per tenant, of all
BULK_JOBS_MAX = 3
SERVED_MIN = 4  # until the flood may end
PADDING_BYTES = 200_000  # of every request of the flood: what keeps them, shows it
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def service(module_service_of) -> Service:
    return module_service_of(
        ONLINE_SLOTS=str(PLACES),
        ENGINE_MAX_NUM_SEQS=str(AT_ONCE),
        ONLINE_QUEUE_MAX=str(WAITING_MAX),
        ONLINE_QUEUE_TOTAL_MAX=str(WAITING_TOTAL_MAX),
        BULK_JOBS_MAX=str(BULK_JOBS_MAX),
    )


# -- those who ask -------------------------------------------------------------------------------------


@dataclass
class Client:
    """Submits online requests that no client waits for, as one tenant."""

    service: Service
    accepted: list[Job] = field(default_factory=list)
    refused: int = 0
    strange: list[str] = field(default_factory=list)  # answers that are neither yes nor "come back later"

    @property
    def offered(self) -> int:
        return len(self.accepted) + self.refused

    def ask(self, http: httpx.Client, row: Row) -> float:
        """Submits a row. Returns after how many seconds it is worth asking again; 0: it was accepted."""
        body = row.body(self.service.model) | {"padding": "x" * PADDING_BYTES}
        webhook = {"url": self.service.receiver.numeric_url}
        answer = http.post(
            "/v1/jobs", json={"endpoint": "chat", "body": body, "webhook": webhook}, timeout=60
        )
        if answer.status_code == httpx.codes.ACCEPTED:
            self.accepted.append(OnlineJob(answer.json()["id"], row))
            return 0
        self.refused += 1
        if not is_come_back_later(answer):
            self.strange.append(f"{answer.status_code} {answer.headers} {answer.text}")
        return float(answer.headers.get("retry-after", 1))


def is_come_back_later(answer: httpx.Response) -> bool:
    error = answer.json()["error"]
    return (
        (answer.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        and bool(error["message"])
        and 1 <= int(answer.headers["retry-after"]) <= 60
    )


def slow_row() -> Row:
    """Two seconds of one of the places in the engine."""
    return Row("one", f"{uuid.uuid4()} ms=100", max_tokens=20)


@contextmanager
def flooding(service: Service, tenants: dict[str, int]) -> Iterator[list[Client]]:
    """Tenants, each with so many threads, that ask and ask and never listen."""
    clients = [Client(service.as_tenant(tenant)) for tenant in tenants]
    is_over = threading.Event()

    def flood(client: Client) -> None:
        with client.service.http() as http:
            while not is_over.is_set():
                client.ask(http, slow_row())

    threads = [
        threading.Thread(target=flood, args=(client,))
        for client, count in zip(clients, tenants.values(), strict=True)
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def served(client: Client) -> int:
    """How many of its requests are answered."""
    answered = (tables.job.c.tenant_id == client.service.tenant_id, tables.job.c.state == JobState.SUCCEEDED)
    with client.service.database.read() as connection:
        return int(connection.execute(select(func.count()).where(*answered)).scalar_one())


def memory_of(service: Service) -> dict[str, int]:
    """Bytes, of every process and of Redis' data."""
    used = {role: footprint.rss_bytes for role, footprint in service.footprints().items()}
    return used | {"redis": int(service.redis.client.info("memory")["used_memory"])}


# -- what comes of it ----------------------------------------------------------------------------------


def test_ten_times_too_much_is_refused_in_time_and_the_rest_is_done(service: Service) -> None:
    warm_up(service)
    polite = Client(service.as_tenant("polite"))
    bulk = Client(service.as_tenant("bulk"))
    with flooding(service, {"noisy": 4, "loud": 2}) as floods, ExitStack() as stack:
        wait_for("the queue is full", lambda: all(client.refused for client in floods))
        before, offered_before = memory_of(service), sum(client.offered for client in floods)

        http = stack.enter_context(polite.service.http())
        while polite.ask(http, slow_row()) == 0:
            continue
        deadline_s = time.monotonic() + WAIT_MAX_S
        while (seconds := polite.ask(http, slow_row())) > 0:
            assert time.monotonic() < deadline_s, "a client that does as it is told gets through"
            time.sleep(seconds)  # as it was told to
        fill_with_bulk(bulk)

        def is_enough() -> bool:
            return all(served(client) >= SERVED_MIN for client in floods) and sum(
                client.offered for client in floods
            ) >= 10 * sum(map(served, [*floods, polite]))

        wait_for("ten times as much was offered as done", is_enough)
        after, offered_after = memory_of(service), sum(client.offered for client in floods)

    clients = [*floods, polite, bulk]
    assert [client.strange for client in clients] == [[], [], [], []]
    for client in clients:
        oracle.wait_for_ends(client.service, client.accepted)
    for client in clients:
        oracle.judge(client.service, client.accepted)
    offered_bytes = (offered_after - offered_before) * PADDING_BYTES
    grown = {role: after[role] - before[role] for role in before}
    print(f"offered {offered_bytes / MIB:.0f} MiB, grown {grown}")
    assert max(grown.values()) < offered_bytes / 4, grown
    assert grown["redis"] < MIB, grown


def warm_up(service: Service) -> None:
    """Lets processes load what they first need now, so that it counts as no growth."""
    jobs = [submit_bulk(service, some_rows(2)), submit_online(service, Row("one", "first"))]
    oracle.quiesce(service, jobs)


def fill_with_bulk(client: Client) -> None:
    """As many bulk jobs as a tenant may have, and one more."""
    service = client.service
    client.accepted += [submit_bulk(service, some_rows(2, seed=seed)) for seed in range(BULK_JOBS_MAX)]
    one_more = {"input": service.put_file("in/more.jsonl", b""), "output": service.location("out/more/")}
    with service.http() as http:
        answer = http.post("/v1/jobs", json={"endpoint": "chat"} | one_more)
    client.refused += 1
    if not is_come_back_later(answer):
        client.strange.append(f"{answer.status_code} {answer.headers} {answer.text}")


def test_a_tenant_that_comes_late_waits_for_its_share_and_not_for_the_queue(service: Service) -> None:
    early, late = service.as_tenant("early"), service.as_tenant("late")
    service.pause("worker-1")
    # They take so long that all have rung before the first places are free again.
    large = [submit_online(early, Row(f"early-{n}", f"early {n} ms=200", 4)) for n in range(WAITING_MAX)]
    small = [submit_online(late, Row(f"late-{n}", f"late {n} ms=200", 4)) for n in range(2)]
    service.resume("worker-1")

    oracle.wait_for_ends(early, large)
    oracle.quiesce(late, small)
    oracle.check(early, large)
    oracle.check(late, small)
    last_of_late = max(started_at(late, job) for job in small)
    before_it = [job for job in large if started_at(early, job) < last_of_late]
    assert len(before_it) <= PLACES + len(small)


def started_at(service: Service, job: Job) -> datetime:
    """When a worker claimed it."""
    started = service.job(job.id).started_at
    assert started is not None
    return started
