"""Inputs that are lists of objects: one job over all of them, in the order of the list."""

from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.bulk.rows.previews import PreviewedObjects, PreviewedRows
from nightshift.errors import InvalidRequest
from nightshift.jobs import Job, JobSpec, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.assembly.conftest import assembled, planned
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.planning.test_pages import ONE_PAGE_A_TURN, assemble, plan, texts
from tests.integration.scheduler.planning.test_submission import request, submitter
from tests.integration.scheduler.planning.test_told_formats import seen
from tests.integration.scheduler.scheduling import TEMPLATE, Place, jsonl
from tests.integration.servers import S3Server
from tests.unit.nightshift.bulk.rows.columns.tables import a_job


@pytest.fixture
def store(sqlite_database: Database, clock: FakeClock) -> Store:
    return Store(sqlite_database, clock=clock)


@pytest.fixture
def place(store: Store, tmp_path: Path) -> Place:
    place = Place.at(store, tmp_path)
    place.serve_model()
    return place


def listed(place: Place, *uris: str) -> Job:
    first, *further = uris
    return place.native(input=first, further_inputs=tuple(further), template=TEMPLATE, model=MODEL)


def in_bucket(place: Place, **contents: bytes) -> list[str]:
    for name, content in contents.items():
        (place.bucket / name).write_bytes(content)
    return [place.uri(name) for name in contents]


def test_a_list_is_one_job_over_files_and_objects_of_any_formats_in_its_order(
    store: Store, tmp_path: Path, moto_server: S3Server
) -> None:
    bucket = moto_server.new_bucket()
    place = Place.at(store, tmp_path, (bucket,))
    place.serve_model()
    moto_server.client.put_object(Bucket=bucket, Key="a.csv", Body=b"text;n\nfrom S3;1\n")
    second, third = in_bucket(
        place, **{"b.jsonl": jsonl([{"text": "b"}]), "a.tsv": b"text\tn\na\t1\nbad\t2\n"}
    )
    with moto_server.in_environment():
        job = planned(place, listed(place, f"s3://{bucket}/a.csv", second, third))
        place.work_off()
        job = assembled(place, job)

        assert texts(place, job) == ["from S3", "b", "a"]
        assert (job.state, job.counts.failed) == (JobState.SUCCEEDED, 1)
        again = planned(place, retry_of(place, job))
    place.work_off(lambda request: (200, {}))
    assert assembled(place, again).counts.succeeded == 1
    place.locations.close()


def test_each_row_of_a_list_is_cut_once_however_many_pages_there_are(place: Place) -> None:
    names = [f"{number % 7}-{number}.jsonl" for number in range(20)]  # in no order of keys
    long = jsonl([{"text": "long"}] * 30)
    uris = in_bucket(place, **{name: jsonl([{"text": name}]) for name in names}, **{"long.jsonl": long})
    job, duty = listed(place, *uris), place.planning(**ONE_PAGE_A_TURN)

    assert plan(place, duty) > 5
    place.work_off()
    assemble(place)

    assert texts(place, place.job(job)) == [*names, *["long"] * 30]


def test_an_object_that_is_not_there_fails_the_job_by_its_name(place: Place) -> None:
    (uri,) = in_bucket(place, **{"a.jsonl": jsonl([{"text": "a"}])})

    job = listed(place, uri, place.uri("gone.jsonl"))
    failed = place.plan(job)

    assert failed.state is JobState.FAILED
    assert "gone.jsonl" in failed.errors[0].message
    (problem,) = seen(place, job)
    assert problem.message == failed.errors[0].message


def test_a_dry_run_looks_at_every_object_of_a_list(place: Place) -> None:
    uris = in_bucket(place, **{"a.jsonl": jsonl([{"text": "a"}]), "b.csv": b"text\nb\nc\n"})

    objects, rows = seen(place, listed(place, *uris))

    assert isinstance(objects, PreviewedObjects)
    assert isinstance(rows, PreviewedRows)
    assert (objects.objects, objects.formats, rows.rows_checked) == (2, ["csv", "jsonl"], 3)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{bucket}/a.jsonl", "the same object as input[0]"),
        ("{bucket}/%61.jsonl", "the same object as input[0]"),
        ("{bucket}/docs/", "a pattern or a folder is an input by itself"),
        ("{bucket}/*.jsonl", "a pattern or a folder is an input by itself"),
        ("file-abc", "an uploaded file is an input by itself"),
        ("file:///etc/passwd", "may not name file:///etc/passwd"),
        ("s3://elsewhere/a.jsonl", "may not name s3://elsewhere/a.jsonl"),
        ("http://169.254.169.254/a.jsonl", "is not a location"),
    ],
)
def test_an_entry_that_may_not_be_in_a_list_is_refused_by_its_number(
    place: Place, entry: str, says: str
) -> None:
    bucket = place.bucket.as_uri()
    further = (f"{bucket}/b.jsonl", entry.format(bucket=bucket))
    wanted = request(place, input=f"{bucket}/a.jsonl", further_inputs=further)

    with pytest.raises(InvalidRequest) as refused:
        submitter(place).check(wanted, PriorityClass.INTERACTIVE)

    assert refused.value.param == "input[2]"
    assert says in refused.value.message


def test_no_object_of_a_list_may_lie_where_the_output_goes(place: Place) -> None:
    further = (place.uri("out/part-00000.jsonl"),)
    wanted = request(place, input=place.uri("a.jsonl"), further_inputs=further)

    with pytest.raises(InvalidRequest) as refused:
        submitter(place).check(wanted, PriorityClass.INTERACTIVE)

    assert refused.value.param == "output"


def test_a_list_is_kept_as_it_was_sent_and_one_location_as_a_text() -> None:
    one = a_job(input="s3://b/a.csv")
    many = replace(one, further_inputs=("s3://b/b.csv", "s3://b/c.csv"))

    assert many.to_json()["input"] == ["s3://b/a.csv", "s3://b/b.csv", "s3://b/c.csv"]
    assert one.to_json()["input"] == "s3://b/a.csv"
    for spec in (one, many):
        assert JobSpec.from_json(spec.to_json()) == spec
    assert many.stored_bytes > one.stored_bytes
