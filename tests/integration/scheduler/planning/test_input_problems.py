"""An S3 server refuses, fails or hangs as an input is planned: the job's owner sees why, until it is read."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightshift.jobs import Job, JobState
from nightshift.lifecycle.problems import ShownProblem, shown_problem
from nightshift.objectstore import open_store
from nightshift.store import Store
from nightshift.store.databases.database import Database
from scheduler.duties.planning import SILENT_S
from tests.helpers.fakes import MODEL, FakeClock, a_worker
from tests.helpers.waiting import wait_for
from tests.integration.objectstore.s3_faults import (
    ANY,
    Fault,
    FaultyS3,
    Refused,
    Swallowed,
    Unreachable,
    faulty_s3,
)
from tests.integration.scheduler.scheduling import IDLE_S, TEMPLATE, Place, jsonl
from tests.integration.servers import S3Server


@dataclass
class Site:
    place: Place
    front: FaultyS3
    bucket: str
    clock: FakeClock

    def job(self) -> Job:
        return self.place.native(
            input=f"s3://{self.bucket}/plain/", output=None, template=TEMPLATE, model=MODEL
        )

    def plan(self) -> None:
        self.place.run(self.place.planning())

    def problem(self, job: Job) -> ShownProblem | None:
        with self.place.store.snapshot() as tx:
            return shown_problem(tx, tx.jobs.fetch(job.id), tx.now())


@pytest.fixture
def store(sqlite_database: Database, clock: FakeClock) -> Store:
    """One database is enough: the store that matters here is the other one."""
    return Store(sqlite_database, clock=clock)


@pytest.fixture
def site(
    store: Store, clock: FakeClock, tmp_path: Path, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setattr("nightshift.objectstore.s3.REQUEST_TRIES_MAX", 1)
    bucket = moto_server.new_bucket()
    with moto_server.in_environment(), closing(open_store(f"s3://{bucket}")) as direct:
        direct.put("plain/a.jsonl", jsonl({"text": "a"} for _ in range(3)))
    with faulty_s3(moto_server) as front, front.server().in_environment():
        place = Place.at(store, tmp_path, (bucket,))
        place.serve_model()
        with store.transaction() as tx:
            tx.workers.register(worker := a_worker())
            tx.workers.serves(worker.id, worker.models, tx.now())
        yield Site(place, front, bucket, clock)
        place.locations.close()


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Refused(400, "ExpiredToken"), "storage_denied", "ExpiredToken: as told"),
        (Refused(403, "InvalidAccessKeyId"), "storage_denied", "InvalidAccessKeyId: as told"),
        (Refused(503, "SlowDown"), "storage_unavailable", "SlowDown: as told"),
        (Refused(500, "InternalError"), "storage_unavailable", "InternalError: as told"),
        (Unreachable(), "storage_unavailable", "Connection was closed"),
    ],
)
def test_the_job_says_why_its_input_is_not_read_until_it_is(
    site: Site, fault: Fault, code: str, words: str
) -> None:
    site.front.set(ANY, fault)
    job = site.job()

    site.plan()

    shown = site.problem(job)
    assert shown is not None
    error = shown.fault.error
    assert (error.code, error.param) == (code, "input")
    assert error.message.startswith("The input cannot be read at present: s3://")
    assert words in error.message
    assert str(site.front.port) not in error.message, "no address of the service's surroundings is told"
    assert site.place.job(job).state is JobState.QUEUED

    site.front.heal()
    site.plan()
    assert site.problem(job) is None
    assert len(site.place.shards(job)) == 1


def test_a_store_that_does_not_answer_is_told_of_before_it_is_given_up(site: Site) -> None:
    site.front.set(ANY, Swallowed())
    job = site.job()
    passed_s = 0.0
    duty = site.place.planning(clock=lambda: passed_s)
    duty.run_once(site.clock.now)
    wait_for("the request to be swallowed", lambda: bool(site.front.met))
    duty.run_once(site.clock.now)
    assert site.problem(job) is None

    passed_s = SILENT_S
    duty.run_once(site.clock.now)

    shown = site.problem(job)
    assert shown is not None
    expected = "The input cannot be read at present: its store has not answered yet"
    assert shown.fault.error.message == expected
    site.front.heal()
    assert duty.wait_until_idle(IDLE_S)
