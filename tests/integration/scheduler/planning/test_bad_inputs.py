"""Inputs of several objects, of which some are bad: each error says where it is, and the others run."""

import gzip
import json
import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.jobs import JobState, JsonObject
from scheduler.input.surveying import SurveyConfig
from tests.helpers.fakes import MODEL
from tests.integration.scheduler.scheduling import TEMPLATE, Place, claimed, jsonl


@pytest.fixture
def place(place: Place) -> Place:
    (place.bucket / "in").mkdir()
    return place


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (
            "b.parquet",
            b"PAR1" + b"\0" * 500,
            "cannot be read as Parquet: Parquet magic bytes not found in footer",
        ),
        (
            "b.arrow",
            b"\xff\xff\xff\xff" + b"\0" * 500,
            "cannot be read as Arrow IPC: It is not Arrow IPC, or it is",
        ),
    ],
)
def test_an_object_that_is_no_table_fails_the_job_by_its_name_before_any_row_runs(
    place: Place, name: str, content: bytes, why: str
) -> None:
    (place.bucket / "in" / "a.jsonl").write_bytes(jsonl([{"text": "a"}]))
    (place.bucket / "in" / name).write_bytes(content)

    failed = place.plan(place.native(name="in/", template=TEMPLATE, model=MODEL))

    (error,) = failed.errors
    assert (failed.state, error.code, error.param) == (JobState.FAILED, "unreadable_input", "input")
    assert f"in/{name} {why}" in error.message
    assert place.shards(failed) == []


def test_a_column_that_one_object_lacks_is_an_error_of_its_rows_alone(place: Place) -> None:
    pq.write_table(pa.table({"text": ["one", "two"]}), place.bucket / "in" / "a.parquet")
    pq.write_table(pa.table({"title": ["three"], "n": [1]}), place.bucket / "in" / "b.parquet")
    pq.write_table(pa.table({"text": ["four"]}), place.bucket / "in" / "c.parquet")
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    place.plan(job)

    results = [place.results(claimed(place.store)) for _ in place.shards(job)]

    (missing,) = [result for shard in results for result in shard if not result.succeeded]
    assert missing.custom_id == "shard-1-row-1"
    assert "asks for a column 'text' that the row does not have; it has: n, title" in str(missing.body)
    assert sum(result.succeeded for shard in results for result in shard) == 3


def test_a_column_that_every_first_row_lacks_fails_the_job_before_any_row_runs(place: Place) -> None:
    (place.bucket / "in" / "a.csv").write_text("doc_id;text\n1;a\n2;b;c\n")

    failed = place.plan(place.native(name="in/", template=TEMPLATE, model=MODEL))

    (error,) = failed.errors
    assert (failed.state, error.code, error.param) == (JobState.FAILED, "missing_column", "text")
    assert "it has: doc_id;text. The separator seems to be a semicolon" in error.message
    assert "It is row 1 of 'file://" in error.message
    assert place.shards(failed) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"text": "a"}{"text": "b"}\n', "a second value begins at character 14"),
        (b"<html>Forbidden</html>", "It is a web page or XML"),
        (jsonl([{"text": "a"}]).decode().encode("utf-16-le"), "It is UTF-16 text without a byte order mark"),
    ],
)
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_a_job_whose_first_rows_cannot_be_read_fails_with_the_cause(
    place: Place, content: bytes, why: str, template: JsonObject | None
) -> None:
    """Without a template, too, where nothing that can be read names a model."""
    (place.bucket / "in" / "a.jsonl").write_bytes(content)
    model = None if template is None else MODEL

    failed = place.plan(place.native(name="in/", template=template, model=model))

    (error,) = failed.errors
    assert failed.state is JobState.FAILED
    assert why in error.message
    assert "in/a.jsonl" in error.message


def test_what_cannot_be_entered_in_the_middle_is_one_shard_however_long(place: Place) -> None:
    """Also behind the objects that are sampled."""
    rows = [{"text": f"{number} {os.urandom(20).hex()}"} for number in range(200)]
    for number in range(SurveyConfig.objects_sampled_max):
        (place.bucket / "in" / f"a{number}.jsonl").write_bytes(jsonl(rows[:1]))
    (place.bucket / "in" / "b.jsonl").write_bytes(gzip.compress(jsonl(rows)))
    (place.bucket / "in" / "c.json").write_text(json.dumps(rows))
    (place.bucket / "in" / "d.jsonl").write_bytes(jsonl(rows))
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)

    place.plan(job, place.planning(shard_bytes=1000))

    shards = Counter(shard.uri.rpartition("/")[2] for shard in place.shards(job))
    assert (shards["b.jsonl"], shards["c.json"]) == (1, 1)
    assert shards["d.jsonl"] > 1


def test_a_prefix_of_very_many_empty_objects_has_no_rows(place: Place) -> None:
    for number in range(2_000):
        (place.bucket / "in" / f"{number:05}.jsonl").touch()

    failed = place.plan(place.native(name="in/", template=TEMPLATE, model=MODEL))

    (error,) = failed.errors
    assert (error.code, error.param) == ("empty_input", "input")


def test_more_objects_than_an_input_may_have_are_refused_with_the_number(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.objectstore.locations.OBJECTS_MAX", 10)
    for number in range(11):
        (place.bucket / "in" / f"{number}.jsonl").touch()

    (error,) = place.plan(place.native(name="in/", template=TEMPLATE, model=MODEL)).errors

    assert "stands for too many objects: at most 10" in error.message
