"""Columns of the input lie beside every row of the output: answered, failed, or never run."""

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.results import output_rows as shard_rows
from nightshift.jobs import Job, JobState, StopReason
from tests.helpers.fakes import MODEL
from tests.integration.scheduler.assembly.conftest import assembled, planned, stop
from tests.integration.scheduler.assembly.test_retries import part_lines, retry_of
from tests.integration.scheduler.scheduling import TEMPLATE, Place, jsonl

ROWS: list[dict[str, Any]] = [
    {"text": "bad" if n % 4 == 3 else f"text {n}", "doc": n, "meta": {"tag": f"é{n}"}} for n in range(12)
]


def a_job(place: Place, keep: Any, **wishes: object) -> Job:
    (place.bucket / "in.jsonl").write_bytes(jsonl(ROWS))
    return planned(place, place.native(model=MODEL, template=TEMPLATE, keep_columns=keep, **wishes))


def kept(place: Place) -> list[dict[str, Any]]:
    lines = [line["columns"] for kind in ("part", "errors") for line in place.part_lines(kind)]
    return sorted(lines, key=lambda columns: columns["doc"])


def test_a_cancelled_jobs_rows_have_their_columns_whatever_came_of_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_rows, "MISSING_CHARS_MAX", 60)
    job = a_job(place, ("doc", "meta.tag", "gone"))
    place.work_off(shards=1)
    stop(place, job, StopReason.CANCELLED)
    ended = assembled(place, job)

    outcomes = {line["outcome"] for kind in ("part", "errors") for line in place.part_lines(kind)}
    assert outcomes >= {"succeeded", "cancelled"}
    assert kept(place) == [{"doc": n, "meta.tag": f"é{n}", "gone": None} for n in range(12)]
    assert json.loads(place.out("_manifest.json"))["settings"]["keep_columns"] == ["doc", "meta.tag", "gone"]
    assert ended.spec.options.keep_columns == ("doc", "meta.tag", "gone")


def test_an_input_that_is_replaced_once_its_rows_have_run_loses_nothing(place: Place) -> None:
    job = a_job(place, "all")
    place.work_off()
    (place.bucket / "in.jsonl").write_text("{}\n")

    assert assembled(place, job).state is JobState.SUCCEEDED
    assert kept(place) == ROWS


@pytest.mark.parametrize("keep", [("doc", "text", "meta"), "all"])
def test_parquet_of_a_job_that_expired_has_them_in_every_file(place: Place, keep: Any) -> None:
    job = a_job(place, keep, format="parquet")
    place.work_off(shards=1)
    stop(place, job, StopReason.EXPIRED)
    assembled(place, job)

    names = [name for kind in ("part", "errors") for name in place.part_names(kind)]
    tables = [pq.read_table(io.BytesIO(place.out(name))) for name in names]
    assert len({str(table.schema) for table in tables}) == 1
    rows = pa.concat_tables(tables).to_pylist()
    assert {"succeeded", "expired"} <= {row["outcome"] for row in rows}
    if keep == "all":
        inputs = [json.loads(row["input"]) for row in rows]
    else:
        inputs = [
            {"text": row["input.text"], "doc": int(row["doc"]), "meta": json.loads(row["meta"])}
            for row in rows
        ]
    assert sorted(inputs, key=lambda row: row["doc"]) == ROWS


def test_kept_columns_of_parquet_are_read_with_those_of_the_template(place: Place) -> None:
    table = pa.table({"text": ["a", "b"], "n": pa.array([1, None], pa.int64()), "rest": ["x", "y"]})
    pq.write_table(table, place.bucket / "in.parquet")
    wishes = {"template": TEMPLATE, "keep_columns": ("n",)}
    job = planned(place, place.native(name="in.parquet", model=MODEL, **wishes))
    stop(place, job, StopReason.CANCELLED)
    assembled(place, job)
    assert [line["columns"] for line in place.part_lines("errors")] == [{"n": 1}, {"n": None}]


@pytest.mark.parametrize("keep", [("doc", "meta.tag"), "all"])
def test_a_retry_keeps_the_columns_of_the_earlier_jobs_rows(place: Place, keep: Any) -> None:
    old = a_job(place, keep)
    place.work_off()
    old = assembled(place, old)
    failed = [line["columns"] for line in place.part_lines("errors")]

    new = planned(place, retry_of(place, old))
    place.work_off(lambda request: (200, {"again": True}))
    assembled(place, new)

    assert len(failed) == 3
    assert [line["columns"] for line in part_lines(place, f"retries/{new.id}")] == failed
