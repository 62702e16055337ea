"""Carry-overs that were changed or are none: they cost tokens, and no answer."""

import pytest
from sqlalchemy import update

from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, Row, submit_bulk
from tests.faults.conftest import ServiceOf
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for

NO_CARRY_OVERS = (
    b'{"row": 0, "choices": [{"output_token_ids": "abc", "logprobs": []}], "made_by": null}\n',
    b'{"row": 0, "choices": [{"output_token_ids": [104, 105], "logprobs": [1]}], "made_by": null}\n',
    b'{"row": 0, "choices": [{"output_token_ids": [104], "logprobs": []}], "made_by": {"a": 1}}\n',
    b'{"row": 0, "choices": [{"output_token_ids": [104], "logprobs": []},'
    b' {"output_token_ids": [104], "logprobs": []}], "made_by": null}\n',
    b'{"row": 0, "choices": [{"output_token_ids": [104, 1000], "logprobs": []}], "made_by": null}\n',
    b'{"row": 0, "choices": [{"output_token_ids": [104, -5], "logprobs": []}], "made_by": null}\n',
    b'{"row": [], "choices": [], "made_by": 1}\n',
    b"[]\n",
    b'{"row": 0, "cho',
    b"[" * 100_000,
)


@pytest.fixture(scope="module")
def service(module_service_of: ServiceOf) -> Service:
    return module_service_of(Parts(), CARRY_OVER_INTERVAL_S="0.2")


def saved(service: Service, job: BulkJob) -> str | None:
    """Where the tokens of its unfinished rows lie."""
    return next((shard.carry_over_key for shard in service.shards(job.id)), None)


def test_a_byte_that_changes_between_two_workers_changes_no_answer(service: Service) -> None:
    """Changes a byte of the first token, so that it is another one: nothing but its sha256 tells."""
    job = submit_bulk(service, [Row("a", "hello ms=20", 250)])
    wait_for("tokens are saved", lambda: saved(service, job))
    service.stop("worker-1")
    key = saved(service, job)
    assert key is not None
    data = bytearray(service.objects.read(key))
    data[data.index(b",", data.index(b"output_token_ids")) - 1] ^= 1
    service.objects.put(key, bytes(data))

    service.start("worker-1")

    oracle.judge(service, [job], Limits(attempts_max=1))
    assert service.log("worker-1").count("rows begin anew") == 1


def test_what_is_no_carry_over_ends_neither_rows_nor_workers(service: Service) -> None:
    """It lies where workers of an earlier release put theirs: there is no sha256 to tell."""
    service.stop("worker-1")
    jobs = [submit_bulk(service, [Row("a", "hello"), Row("b", "there")]) for _ in NO_CARRY_OVERS]
    for job, data in zip(jobs, NO_CARRY_OVERS, strict=True):
        wait_for("it is planned", lambda job=job: service.shards(job.id))
        key = f"segments/{service.tenant_id}/{job.id}/000000/t0-c000000.jsonl"
        service.objects.put(key, data)
        with service.database.write() as connection:
            change = update(tables.shard).values(carry_over_key=key)
            connection.execute(change.where(tables.shard.c.job_id == job.id))

    service.start("worker-1")
    service.wait_until_ready()
    pid = service.pid("worker-1")

    oracle.judge(service, jobs, Limits(attempts_max=1))
    assert service.pid("worker-1") == pid
