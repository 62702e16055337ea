"""A process that kills itself while it copies a part of an earlier run leaves nothing that is not mended.

As `test_kill_points.py`. The second run has the same rows of the same object as the first: no row of it is
computed, and its parts are the first one's, copied by the store. A third run, of the second with some rows
changed, says whether the digests that were copied with the parts are right: just the rows that changed are
computed.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.results.digest_files import digest_files
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for

SMALL = Parts(workers=2, schedulers=2)
LARGE = Parts(database="postgresql", objects="moto", workers=2, schedulers=2)
GREEDY = {"temperature": 0}  # answers that repeat
ROWS, CHANGED = 40, 3  # three parts


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=str)
def service(request: pytest.FixtureRequest, module_service_of: Any) -> Service:
    """One for all deaths there are on it: it has to survive them one after another, too."""
    started: Service = module_service_of(request.param)
    return started


@pytest.fixture(autouse=True)
def nothing_is_left_armed(service: Service) -> Iterator[None]:
    yield
    assert service.disarm() == [], "no process reached it"


@pytest.fixture
def first(service: Service, request: pytest.FixtureRequest) -> BulkJob:
    rows = some_rows(ROWS, seed=len(request.node.name), sampling=GREEDY)
    job = submit_bulk(service, rows, format="parquet")
    oracle.quiesce(service, [job])
    assert rows_reused(service, job) == 0
    return job


def run_again(service: Service, earlier: BulkJob, rows: Sequence[Row]) -> BulkJob:
    """The rows of the earlier run's own object where they are the same."""
    options: dict[str, Any] = {"format": "parquet", "reuse": earlier.id}
    if list(rows) == list(earlier.rows):
        options["input"] = service.location(f"in/{input_of(service, earlier)}")
    return submit_bulk(service, rows, **options)


def input_of(service: Service, job: BulkJob) -> str:
    with service.store.snapshot() as tx:
        place = tx.jobs.fetch(job.id).spec.input
    assert place is not None
    return place.rpartition("/")[2]


def rows_reused(service: Service, job: BulkJob) -> int:
    with service.store.snapshot() as tx:
        return tx.jobs.fetch(job.id).rows_reused


def manifest_of(service: Service, job: BulkJob) -> dict[str, Any]:
    service.read_file(f"{job.output}_SUCCESS")
    return dict(json.loads(service.read_file(f"{job.output}_manifest.json")))


def judge(service: Service, job: BulkJob, texts: Sequence[str]) -> None:
    """Nothing is missing, double or another answer, and all is as the manifest and the database count it.

    `texts`: the answers.
    """
    manifest = manifest_of(service, job)
    found: list[dict[str, Any]] = []
    for part in manifest["parts"]:
        data = service.read_file(job.output + part["name"])
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (part["sha256"], part["size_bytes"])
        found += pq.read_table(pa.BufferReader(data)).to_pylist()
    assert manifest["errors"] == []
    assert [row["custom_id"] for row in found] == [row.custom_id for row in job.rows]
    assert [row["text"] for row in found] == texts
    assert (manifest["counts"]["total"], manifest["counts"]["succeeded"]) == (len(job.rows), len(job.rows))
    with service.store.snapshot() as tx:
        counts = tx.jobs.fetch(job.id).counts
        assert tx.holdings.differences() == {}
    assert (counts.total, counts.succeeded, counts.failed) == (len(job.rows), len(job.rows), 0)


def texts_of(service: Service, job: BulkJob) -> list[str]:
    """The answers of a job that computes all of its rows: the fake engine's are each job's own."""
    with service.store.snapshot() as tx:
        stored, shards = tx.jobs.fetch(job.id), tx.shards.of_job(job.id, limit=1000)
    expected = list(oracle.expected_lines(service, job, stored, shards))
    return [result.body["choices"][0]["message"]["content"] for result in expected]


def digests(service: Service, job: BulkJob) -> list[tuple[int, str]]:
    """Of each digest file, the part and the sha256 of its bytes, which are these."""
    files = sorted(digest_files(service.objects, service.tenant_id, job.id), key=lambda file: file.key)
    for file in files:
        assert hashlib.sha256(service.objects.read(file.key)).hexdigest() == file.sha256
    return [(file.first_shard, file.sha256) for file in files]


def parts_copied(service: Service) -> int:
    return sum(service.log(role).count("part copied") for role in service.kept)


def computed(service: Service, job: BulkJob) -> list[str]:
    """The requests that the engines were given for a job."""
    return [stamp.id for stamp in service.stamps() if stamp.what == "added" and job.id in stamp.id]


@pytest.mark.parametrize("point", ["part.begun", "part.staged"])
def test_a_process_that_dies_over_the_copy_of_a_part_leaves_it_to_the_next(
    service: Service, first: BulkJob, point: str
) -> None:
    before = parts_copied(service)
    service.arm(point)
    second = run_again(service, first, first.rows)
    wait_for(f"a process reached {point}", lambda: not service.is_armed(point))
    service.let_another_lead()
    oracle.quiesce(service, [first, second])

    texts = texts_of(service, first)
    judge(service, first, texts)
    judge(service, second, texts)
    ours, theirs = manifest_of(service, second)["parts"], manifest_of(service, first)["parts"]
    assert len(ours) > 1
    assert [part["sha256"] for part in ours] == [part["sha256"] for part in theirs]
    assert [part["reused"] for part in ours] == [part["rows"] for part in ours]
    assert rows_reused(service, second) == ROWS
    assert computed(service, second) == []
    assert parts_copied(service) - before >= len(ours)
    assert digests(service, second) == digests(service, first) != []

    rows = list(second.rows)
    for number in (0, ROWS // 2, ROWS - 1):
        rows[number] = replace(rows[number], prompt=f"{rows[number].prompt} changed")
    third = run_again(service, second, rows)
    oracle.quiesce(service, [third])
    own = texts_of(service, third)
    expected = [own[n] if rows[n] != second.rows[n] else texts[n] for n in range(ROWS)]
    assert sum(one != other for one, other in zip(expected, texts, strict=True)) == CHANGED
    judge(service, third, expected)
    assert rows_reused(service, third) == ROWS - CHANGED
    assert len(computed(service, third)) == CHANGED
