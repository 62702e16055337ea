"""An object that cannot be read to its end: what finished is written, and the job fails by its name."""

import gzip
import io
import json
import os
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.rows.inputs import iter_rows
from nightshift.bulk.rows.requests import to_request
from nightshift.errors import NightshiftError
from nightshift.jobs import BulkClaim, Job, JobState, JsonObject
from nightshift.lifecycle.problems import ShownProblem, shown_problem
from tests.helpers.fakes import MODEL, claimed
from tests.integration.scheduler.assembly.conftest import assembled, planned
from tests.integration.scheduler.scheduling import LINE_BYTES_MAX, TEMPLATE, Place, echoed, jsonl, result_of
from workers.shard.endings import Endings

ROWS: list[JsonObject] = [{"text": os.urandom(100).hex()} for _ in range(2000)]
TABLE = pa.Table.from_pylist(ROWS)


def cut_gzip() -> bytes:
    whole = gzip.compress(jsonl(ROWS))
    return whole[: len(whole) // 2]


def cut_array() -> bytes:
    return json.dumps(ROWS).encode()[:-1000]


def cut_arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, 500)
    return sink.getvalue()[:-20_000]


def damaged_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=500, use_dictionary=False, compression="none")
    whole = sink.getvalue()
    return whole[: len(whole) // 2] + b"\xff" * 10_000 + whole[len(whole) // 2 + 10_000 :]


BAD = {
    "b.jsonl.gz": cut_gzip,
    "b.json": cut_array,
    "b.arrow": cut_arrow,
    "b.parquet": damaged_parquet,
}


def run_as_far_as_possible(place: Place, claim: BulkClaim) -> int:
    """A worker's part. Returns the rows that have a result."""
    results: list[RowResult] = []
    try:
        source = place.sources.open(claim.shard.uri, claim.lease.tenant_id)
        for row in iter_rows(source.store, source.key, claim.shard, line_bytes_max=LINE_BYTES_MAX):
            results.append(result_of(claim, row.index, to_request(row, claim.job.spec, claim.shard), echoed))
    except NightshiftError as error:
        place.commit(claim, 0, results)
        Endings(claim, place.store).after_input(error, tokens_lost=0)
    else:
        place.commit(claim, 0, results)
        assert Endings(claim, place.store).complete(len(results))
    return len(results)


def run_all(place: Place) -> int:
    rows = 0
    while True:
        with place.store.snapshot() as tx:
            if not tx.shards.queued():
                return rows
        rows += run_as_far_as_possible(place, claimed(place.store))


def problem(place: Place, job: Job) -> ShownProblem | None:
    with place.store.snapshot() as tx:
        return shown_problem(tx, tx.jobs.fetch(job.id), tx.now())


def a_job(place: Place, name: str, content: bytes) -> Job:
    (place.bucket / "in").mkdir()
    (place.bucket / "in" / "a.jsonl").write_bytes(jsonl(ROWS[:20]))
    (place.bucket / "in" / name).write_bytes(content)
    (place.bucket / "in" / "c.jsonl").write_bytes(jsonl(ROWS[:20]))
    return planned(place, place.native(name="in/", template=TEMPLATE, model=MODEL))


@pytest.mark.parametrize(
    "name",
    [
        "b.jsonl.gz",
        pytest.param("b.json", marks=pytest.mark.exhaustive),
        pytest.param("b.arrow", marks=pytest.mark.exhaustive),
        "b.parquet",
    ],
)
def test_a_job_over_an_object_that_is_cut_writes_what_finished_and_fails_by_its_name(
    place: Place, name: str
) -> None:
    job = a_job(place, name, BAD[name]())

    rows = run_all(place)

    cause = problem(place, job)
    ended = assembled(place, job)
    (error,) = ended.errors
    assert ended.state is JobState.FAILED
    assert (error.code, error.param) == ("unreadable_input", "input")
    assert error.message.startswith(f"{place.uri(f'in/{name}')} cannot be read")
    assert ("after row " in error.message) == (name != "b.parquet")  # of which each row group is a shard
    assert cause is not None
    assert (cause.fault.error, cause.fault.is_permanent) == (error, True)
    assert rows > 40
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed) == (rows, rows, 0)
    assert len(place.part_lines()) == rows
    manifest = json.loads(place.out("_manifest.json"))
    assert (manifest["status"], manifest["counts"]["succeeded"]) == ("failed", rows)
    assert not (place.bucket / "out" / "_SUCCESS").exists()


def replaced(place: Place) -> None:
    (place.bucket / "in" / "b.jsonl").write_bytes(jsonl([{"text": "another"}]))


def deleted(place: Place) -> None:
    (place.bucket / "in" / "b.jsonl").unlink()


@pytest.mark.parametrize(
    ("happens", "code", "says"),
    [
        (replaced, "input_changed", "is not the object it was when the job was planned"),
        (deleted, "object_not_found", "no such object"),
    ],
)
def test_an_object_that_is_replaced_or_deleted_while_its_job_runs_fails_it_by_its_name(
    place: Place, happens: Callable[[Place], None], code: str, says: str
) -> None:
    """Results that it has from before are written, too."""
    job = a_job(place, "b.jsonl", jsonl(ROWS[:1]))
    while not (half := claimed(place.store)).shard.uri.endswith("b.jsonl"):
        run_as_far_as_possible(place, half)
    place.commit(half, 0, place.results(half))
    happens(place)

    unread = place.sources.open(half.shard.uri, half.lease.tenant_id)
    with pytest.raises(NightshiftError) as caught:
        list(iter_rows(unread.store, unread.key, half.shard, line_bytes_max=LINE_BYTES_MAX))
    Endings(half, place.store).after_input(caught.value, tokens_lost=0)
    run_all(place)

    ended = assembled(place, job)
    (error,) = ended.errors
    assert (ended.state, error.code) == (JobState.FAILED, code)
    assert says in error.message
    assert place.uri("in/b.jsonl") in error.message
    assert {line["response"]["body"]["choices"][0]["message"]["content"] for line in place.part_lines()} >= {
        row["text"] for row in ROWS[:1]
    }
    assert ended.counts.total == len(place.part_lines())
