"""The database restarts, falls silent, refuses, loses its answers or is locked while jobs run.

One service for all that happens to PostgreSQL: each test leaves it well behind. `make outages` (LONG=1) makes
its outages last five minutes, and SQLite's lock ten seconds.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import select, text

from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import Job, OnlineJob, Row, submit_some
from tests.faults.conftest import ServiceOf
from tests.faults.kit.launch import SCALED
from tests.faults.kit.outages import POSTGRESQL, cut_off, exhaustive_but, wait_until_ended
from tests.faults.kit.proxy import Reset
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for

TIMEOUT_S = 2.0
PARTS = Parts(database="postgresql", workers=2, proxies=frozenset({"database"}))
LONG = bool(os.environ.get("LONG"))
pytestmark = pytest.mark.timeout(600.0 if LONG else 300.0)
LEASE_S = float(SCALED["LEASE_TTL_S"])
UNCHARGED = Limits(attempts_max=1)


@pytest.fixture(scope="module")
def service(module_service_of: ServiceOf) -> Service:
    return module_service_of(PARTS, DATABASE_TIMEOUT_S=str(TIMEOUT_S))


def judge(service: Service, jobs: list[Job], limits: Limits) -> None:
    wait_until_ended(service, jobs)
    service.let_webhooks_be_due()  # one whose delivery could not be recorded would be after a minute
    print(oracle.judge(service, jobs, limits))


# -- outages -------------------------------------------------------------------------------------------

# For how long: one that outlasts the leases, the others a heartbeat.
SILENCE = "the network before PostgreSQL swallows everything"
SECONDS = dict.fromkeys(POSTGRESQL, 300.0 if LONG else 1.0)
SECONDS[SILENCE] = max(SECONDS[SILENCE], LEASE_S + TIMEOUT_S)


@pytest.mark.parametrize("name", exhaustive_but(POSTGRESQL, SILENCE, "PostgreSQL crashes"))
def test_an_outage_costs_time_and_nothing_else(service: Service, name: str) -> None:
    jobs = submit_some(service, seed=1, step_ms=20)
    wait_for("a row is done", lambda: service.job(jobs[0].id).counts.succeeded)
    began_s = time.monotonic()
    with POSTGRESQL[name](service):
        answer = ask(service)
        has_lasted_s = time.monotonic() - began_s
        threading.Event().wait(max(0.0, SECONDS[name] - has_lasted_s))
    ended_s = time.monotonic()

    if POSTGRESQL[name] is cut_off:  # some get through
        jobs += accepted([answer])
    else:
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert int(answer.headers["retry-after"]) >= 1
    judge(service, jobs, Limits(attempts_max=4))
    print(f"{name}: everything was done {time.monotonic() - ended_s:.1f} s after it")
    assert crashes(service, jobs) == 0, "no row caused a crash"


ASKED = Row("asked", "hello")


def ask(service: Service) -> httpx.Response:
    """Once, whatever the answer is."""
    webhook = {"url": service.receiver.numeric_url}
    body = {"endpoint": "chat", "body": ASKED.body(service.model), "webhook": webhook}
    with service.http() as http:
        return http.post("/v1/jobs", json=body, timeout=WAIT_MAX_S)


def accepted(answers: Iterable[httpx.Response]) -> list[Job]:
    return [OnlineJob(answer.json()["id"], ASKED) for answer in answers if answer.is_success]


def crashes(service: Service, jobs: list[Job]) -> int:
    """Workers that the jobs' shards are said to have killed."""
    ids = [job.id for job in jobs]
    with service.database.read() as connection:
        counts = select(tables.shard.c.crash_count).where(tables.shard.c.job_id.in_(ids))
        return sum(connection.execute(counts).scalars())


# -- answers lost, and no ------------------------------------------------------------------------------


def test_answers_to_commits_are_lost(service: Service) -> None:
    """The transaction took place, unknown to its client. What is done again must find that out."""
    service.proxy["database"].set(Reset(after=b"COMMIT", times=12))
    jobs = submit_some(service, seed=2)
    service.proxy["database"].heal()

    judge(service, jobs, Limits(attempts_max=20))


# A sequence for each table: the others' statements must not make a request's every try the unlucky one.
CONFLICTS = """
CREATE SEQUENCE job_conflicts; CREATE SEQUENCE segment_conflicts; CREATE SEQUENCE shard_conflicts;
CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval((TG_TABLE_NAME || '_conflicts')::regclass) % TG_ARGV[0]::int = 0 THEN
        RAISE EXCEPTION 'chosen against' USING ERRCODE = TG_ARGV[1];
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER conflict BEFORE INSERT ON job EXECUTE FUNCTION conflict('2', '40001');
CREATE TRIGGER conflict BEFORE INSERT ON segment EXECUTE FUNCTION conflict('2', '40001');
CREATE TRIGGER conflict BEFORE UPDATE ON shard EXECUTE FUNCTION conflict('5', '40P01');
"""


@contextmanager
def conflicts(service: Service) -> Iterator[None]:
    """The database keeps choosing others over our transactions."""
    with service.database.write() as connection:
        connection.execute(text(CONFLICTS))
    try:
        yield
    finally:
        with service.database.write() as connection:
            connection.execute(text("DROP FUNCTION conflict CASCADE"))
            connection.execute(text("DROP SEQUENCE job_conflicts, segment_conflicts, shard_conflicts"))


def test_transactions_that_have_to_give_way_are_run_again(service: Service) -> None:
    with conflicts(service):
        answers = [ask(service) for _ in range(4)]
        jobs = submit_some(service, seed=3)
        oracle.quiesce(service, jobs)

    assert len(accepted(answers)) == 4
    judge(service, [*jobs, *accepted(answers)], Limits(attempts_max=4))


# -- SQLite --------------------------------------------------------------------------------------------


def test_another_process_keeps_sqlite_locked_for_a_while(service_of: ServiceOf) -> None:
    """Writers take turns: a process that waits for the lock is late, and nothing else."""
    leases = {"LEASE_TTL_S": "30", "LEASE_TRUST_S": "20"} if LONG else {}
    service = service_of(Parts(workers=2), **leases)
    jobs = submit_some(service, seed=4)
    with ThreadPoolExecutor() as asking, service.store.transaction():
        requests = [asking.submit(ask, service) for _ in range(3)]
        threading.Event().wait(10.0 if LONG else 3.0)  # below the lease's time, above a beat's

    answered = accepted(request.result() for request in requests)
    assert len(answered) == 3
    judge(service, [*jobs, *answered], UNCHARGED)
