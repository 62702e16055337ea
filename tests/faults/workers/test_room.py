"""Batches beside those that a worker has already: none is held up by the long rows of others."""

import json
from collections.abc import Iterator

import pytest

from nightshift.jobs import Face, JobState
from nightshift.jobs.ids import job_id_of_batch
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk
from tests.faults.kit.fake_engine import EMBEDDER
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for

MODEL, OTHER, LAZY = "fake", "other", "lazy"
EMBEDDINGS = "/v1/embeddings"
FULL_SHARDS, ROWS_IN_FLIGHT = 2, 4
A_ROW, SOME_ROWS = some_rows(1), some_rows(6, seed=1)


@pytest.fixture(scope="module")
def shared(module_service_of) -> Service:
    """One worker. Its engines have room for all rows that it may hold."""
    return module_service_of(
        Parts(),
        MODELS=f"{MODEL},{OTHER},{EMBEDDER}",
        LAZY_MODELS=LAZY,
        SHARDS_MAX=str(FULL_SHARDS),
        ROWS_IN_FLIGHT_MAX=str(ROWS_IN_FLIGHT),
        ENGINE_MAX_NUM_SEQS="1000",
        SHARD_BYTES="4096",
    )


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """Rows that say `!wait` run until the test has ended."""
    shared.wait_until_ready()
    with shared.held():
        yield shared
    wait_for("all jobs have ended", lambda: not open_jobs(shared))


def open_jobs(service: Service) -> int:
    with service.store.snapshot() as tx:
        return sum(backlog.jobs for backlog in tx.jobs.backlog())


def long(number: int = 0) -> Row:
    return Row(f"long-{number}", f"long {number} !wait", max_tokens=4)


def one_row_batches(service: Service, count: int) -> list[BulkJob]:
    return [submit_bulk(service, [long(number)], face=Face.OPENAI) for number in range(count)]


def large_job(service: Service, shards: int = 8) -> BulkJob:
    """A job of rows that do not end, in as many shards."""
    rows = [Row(f"{number}", f"{number} !wait " + "x" * 400, max_tokens=4) for number in range(8 * shards)]
    return submit_bulk(service, rows)


def embeddings_batch(service: Service) -> BulkJob:
    lines = [
        {
            "custom_id": f"{n}",
            "method": "POST",
            "url": EMBEDDINGS,
            "body": {"model": EMBEDDER, "input": f"{n}"},
        }
        for n in range(6)
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with service.http() as http:
        file = http.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": file["id"], "endpoint": EMBEDDINGS, "completion_window": "24h"}
        batch = http.post("/v1/batches", json=body).json()
    job_id = job_id_of_batch(batch["id"])
    assert job_id is not None
    return BulkJob(job_id, Face.OPENAI, (), "", "embeddings")


def running(service: Service, *jobs: BulkJob) -> int:
    return sum(service.job(job.id).state is JobState.RUNNING for job in jobs)


def leased(service: Service) -> int:
    return len(service.leases())


def assert_ends_meanwhile(service: Service, jobs: list[BulkJob], *others: BulkJob) -> None:
    """Jobs end while others are held."""
    before = running(service, *others)
    assert before > 0
    oracle.wait_for_ends(service, jobs)
    assert [service.job(job.id).state for job in jobs] == [JobState.SUCCEEDED] * len(jobs)
    assert running(service, *others) >= before


@pytest.mark.parametrize("face", [Face.NATIVE, pytest.param(Face.OPENAI, marks=pytest.mark.exhaustive)])
def test_a_one_row_batch_runs_beside_long_shards_of_its_own_tenant_and_of_all_models(service, face):
    models = [service, service.asking(OTHER), service.asking(LAZY)]
    held = [large_job(model) for model in models]
    wait_for("no model has more room", lambda: leased(service) == len(models) * FULL_SHARDS)

    jobs = [
        *(submit_bulk(model, A_ROW, face=face) for model in models),
        *(submit_bulk(model.as_tenant("other"), A_ROW, face=face) for model in models),
        submit_bulk(service.as_tenant("third"), some_rows(40, seed=3), face=face),
    ]
    assert_ends_meanwhile(service, jobs, *held)
    assert leased(service) == len(models) * FULL_SHARDS


def test_hundreds_of_one_row_batches_hold_up_no_other_tenant_and_no_other_model(service):
    held = one_row_batches(service, 40)
    wait_for("as many run as may", lambda: running(service, *held) >= 8)

    jobs = [
        submit_bulk(service.as_tenant("other"), SOME_ROWS),
        embeddings_batch(service.as_tenant("other")),
        embeddings_batch(service),
        submit_bulk(service.as_tenant("third").asking(OTHER), SOME_ROWS),
        submit_bulk(service.asking(OTHER), SOME_ROWS),
        submit_bulk(service.asking(LAZY), SOME_ROWS),
    ]
    assert_ends_meanwhile(service, jobs, *held)
    assert running(service, *held) <= 13, "it leaves places to others"


def test_long_rows_are_handed_back_and_run_elsewhere_where_their_worker_goes(service):
    held = one_row_batches(service, 3)
    large = large_job(service, shards=3)
    wait_for("they run", lambda: running(service, large, *held) == 4)

    assert service.stop("worker-1") == 0
    assert leased(service) == 0
    service.start("worker-1")

    wait_for("they run again", lambda: leased(service) >= 3 + FULL_SHARDS)
    assert_ends_meanwhile(service, [submit_bulk(service, A_ROW)], *held)
