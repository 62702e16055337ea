"""The object store fails under the running service: every call, some of them, or one job's own
places. Nothing is lost or doubled, no attempt is charged for it, and nothing but orphans is ever collected.

What retention may collect is collected all the while, as soon as it is a second old.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from api.services.threads import STORAGE_THREADS_MAX
from nightshift.jobs import Face, JobState
from scheduler.duties.retention import COLLECTED
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for
from tests.integration.objectstore.s3_faults import (
    ANY,
    AnswerLost,
    CutShort,
    Damaged,
    Fault,
    FaultyS3,
    Refused,
    Slow,
    Swallowed,
    Unreachable,
)

SEED: Final = 20261121  # of what chance has a hand in
SETTINGS: Final = {
    "ROWS_IN_FLIGHT_MAX": "32",
    "RETENTION_INTERVAL_S": "0.3",
    "ORPHAN_AGE_S": "1",
    # Long, so that no attempt is charged for a machine that is busy with other things.
    "LEASE_TTL_S": "30",
    "LEASE_TRUST_S": "20",
}
UNCHARGED: Final = Limits(attempts_max=1)
WORKERS: Final = ("worker-1", "worker-2")
KILLS: Final = 1
READERS: Final = 48  # more than threads for everything else: 40, by default


@pytest.fixture(scope="module")
def everything(module_service_of: ServiceOf) -> Service:
    print(f"seed {SEED}")
    return module_service_of(Parts(objects="moto", workers=2, s3_faults_seed=SEED), **SETTINGS)


@pytest.fixture
def service(everything: Service) -> Iterator[Service]:
    """The same for all tests here, each of which finds its object store well."""
    yield everything
    front_of(everything).heal()


def front_of(service: Service) -> FaultyS3:
    assert service.s3_front is not None, "the service was made with one"
    return service.s3_front


def wait_until_under_way(service: Service, job: BulkJob) -> None:
    """Some of its rows are listed, and most are not."""
    wait_for("rows are done", lambda: service.job(job.id).counts.succeeded > 0)
    assert service.job(job.id).counts.succeeded < len(job.rows) / 2, "it was to be caught in the middle"


# -- every call ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [Unreachable(), pytest.param(Refused(400, "ExpiredToken"), marks=pytest.mark.exhaustive)],
    ids=["away", "expired"],
)
def test_running_jobs_wait_for_a_store_that_comes_back(service: Service, fault: Fault) -> None:
    front, before = front_of(service), list(map(service.pid, WORKERS))
    jobs = [
        submit_bulk(service, some_rows(120, step_ms=50)),
        submit_bulk(service, some_rows(20, seed=1), face=Face.OPENAI),
    ]
    wait_until_under_way(service, jobs[0])
    front.set(ANY, fault)

    def is_missed() -> bool:
        """A checkpoint was refused, and tried again after a pause."""
        puts = [line for line in front.met if line.startswith("PUT") and "/segments/" in line]
        return len(puts) > len(set(puts)) > 0

    wait_for("a checkpoint is tried again", is_missed)
    online = submit_online(service, Row("one", "hello"))
    wait_for("who needs no objects has an answer", lambda: service.job(online.id).state.is_terminal)
    assert not service.job(jobs[0].id).state.is_terminal
    front.heal()

    oracle.judge(service, [*jobs, online], UNCHARGED)
    assert list(map(service.pid, WORKERS)) == before


# -- now and then --------------------------------------------------------------------------------------


def make_fail(front: FaultyS3) -> None:
    """Three requests in ten, in every way there is; and what arrives of results is not always what was
    written.
    """
    for fault in (Refused(503, "SlowDown"), Refused(500, "InternalError"), AnswerLost()):
        front.set(ANY, fault, share=0.08)
    for fault in (CutShort(), CutShort(is_reset=True)):
        front.set("GET", fault, share=0.15)
    front.set("GET", Damaged(), times=3, path="/segments/")


def make_slow(front: FaultyS3) -> None:
    front.set(ANY, Slow(delay_s=0.1, bytes_per_s=50_000))


@pytest.mark.parametrize("spoil", [make_fail, pytest.param(make_slow, marks=pytest.mark.exhaustive)])
def test_jobs_end_as_they_would_on_a_store_that_is_well(service: Service, spoil) -> None:
    front = front_of(service)
    spoil(front)
    jobs = [
        submit_bulk(service, some_rows(60)),
        submit_bulk(service, some_rows(30, seed=1), face=Face.OPENAI),
    ]

    oracle.quiesce(service, jobs)

    assert front.met
    front.heal()
    oracle.check(service, jobs, UNCHARGED)


def test_checkpoints_that_hang_hold_up_no_other_job(service: Service) -> None:
    front = front_of(service)
    hanging = submit_bulk(service, some_rows(15, step_ms=20))
    front.set("PUT", Swallowed(), path=f"/{hanging.id}/")
    other = submit_bulk(service, some_rows(60, seed=1))

    wait_for("the other job ends", lambda: service.job(other.id).state.is_terminal)

    assert not service.job(hanging.id).state.is_terminal
    front.heal()
    oracle.judge(service, [hanging, other], UNCHARGED)


def test_readers_of_a_store_that_hangs_delay_no_request_that_does_not_need_it(service: Service) -> None:
    front, data = front_of(service), b"what was uploaded"
    with service.http() as http, ThreadPoolExecutor(READERS) as readers:
        form = {"files": {"file": ("a", data)}, "data": {"purpose": "user_data"}}
        file_id = http.post("/v1/files", **form).raise_for_status().json()["id"]
        front.set(ANY, Swallowed(), path=file_id)
        reading = [
            readers.submit(http.get, f"/v1/files/{file_id}/content", timeout=60) for _ in range(READERS)
        ]
        wait_for("the store keeps readers waiting", lambda: len(front.met) >= STORAGE_THREADS_MAX - 1)

        job = submit_online(service, Row("one", "hello"))

        assert not any(read.done() for read in reading)
        front.heal()
        assert [read.result().content for read in reading] == [data] * READERS
    oracle.judge(service, [job])


def test_an_upload_outlasts_refused_conditions_and_is_there_once(service: Service) -> None:
    front = front_of(service)
    for fault in (
        Refused(409, "ConditionalRequestConflict"),
        Refused(412, "PreconditionFailed"),  # although nothing lies there
        AnswerLost(),  # so that the next try finds its own bytes
    ):
        front.set("PUT", fault, times=1, path="/files/")

    job = submit_bulk(service, some_rows(10), face=Face.OPENAI)

    assert len(front.met) == 3
    oracle.judge(service, [job], UNCHARGED)
    with service.http() as http:
        files = http.get("/v1/files", params={"purpose": "batch"}).json()["data"]
    assert [file["filename"] for file in files].count(f"{job.name}.jsonl") == 1


# -- one job's own places ------------------------------------------------------------------------------


def test_what_a_job_named_and_may_not_use_ends_that_job_with_the_reason_and_no_other(
    service: Service,
) -> None:
    front = front_of(service)
    # More rows than both workers hold: they have not read all of it by then.
    unreadable, changed = (submit_bulk(service, some_rows(600, step_ms=40)) for _ in range(2))
    unwritable, good = (submit_bulk(service, some_rows(20)) for _ in range(2))
    front.set(ANY, Refused(403, "AccessDenied"), path=f"/{unwritable.output}")
    wait_until_under_way(service, unreadable)
    front.set(ANY, Refused(403, "AccessDenied"), path=f"/in/{unreadable.name}")
    wait_until_under_way(service, changed)
    service.put_file(f"in/{changed.name}.jsonl", b'{"text": "something else"}\n' * 1000)

    oracle.quiesce(service, [unreadable, changed, unwritable, good])

    assert [ended_as(service, job) for job in (unreadable, changed, unwritable)] == [
        (JobState.FAILED, "storage_denied", "input"),
        (JobState.FAILED, "input_changed", "input"),
        (JobState.FAILED, "storage_denied", "output"),
    ]
    oracle.check(service, [good], UNCHARGED)


def ended_as(service: Service, job: BulkJob) -> tuple[JobState, str, str | None]:
    ended = service.job(job.id)
    return ended.state, ended.errors[0].code, ended.errors[0].param


# -- retention -----------------------------------------------------------------------------------------


def test_orphans_are_collected_and_nothing_else_while_shards_run(service: Service) -> None:
    collected = service.counter(COLLECTED)
    # Stored at once, and listed when the answer has come: long after they are old enough to be collected.
    front_of(service).set("PUT", Slow(delay_s=3), times=2, path="/segments/")
    jobs = [submit_bulk(service, some_rows(80, seed=seed, step_ms=20)) for seed in range(2)]
    for _ in range(KILLS):  # each leaves a segment that is stored and not listed
        service.arm("worker.segment_stored")
        service.wait_for_death("worker.segment_stored")

    oracle.quiesce(service, jobs)
    wait_for("orphans are gone", lambda: segments_stored(service) <= segments_listed(service))

    assert segments_stored(service) == segments_listed(service)
    assert service.counter(COLLECTED) >= collected + KILLS
    oracle.check(service, jobs, Limits(attempts_max=1 + KILLS))


def segments_stored(service: Service) -> set[str]:
    return {info.key for info in service.objects.list("segments/")}


def segments_listed(service: Service) -> set[str]:
    """Keys of the segments of all jobs that have run here."""
    with service.store.snapshot() as tx:
        jobs = tx.jobs.list("default", limit=1000)
        pages = [tx.shards.segments_of_job("default", job.id, limit=1000) for job in jobs]
    return {listed.segment.key for page in pages for listed in page}
