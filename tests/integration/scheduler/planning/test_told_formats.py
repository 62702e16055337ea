"""Inputs whose format the job tells, because the names of their objects do not."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightshift.bulk.rows.previews import Previewer
from nightshift.jobs import Job, JobState
from nightshift.jobs.options import INPUT_FORMATS
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.assembly.conftest import assembled, planned
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.scheduling import LINE_BYTES_MAX, TEMPLATE, Place, jsonl
from tests.unit.nightshift.bulk.rows.columns.tables import parquet, stream

TEXTS = pa.table({"text": ["a", "b"]})
CONTENTS = {
    "jsonl": jsonl([{"text": "a"}, {"text": "b"}]),
    "csv": b"text,n\na,1\nb,2\n",
    "tsv": b"text\tn\na\t1\nb\t2\n",
    "parquet": parquet(TEXTS),
    "arrow": stream(TEXTS),
}


@pytest.fixture
def place(sqlite_database: Database, clock: FakeClock, tmp_path: Path) -> Place:
    place = Place.at(Store(sqlite_database, clock=clock), tmp_path)
    place.serve_model()
    return place


def told(place: Place, format: str | None, **wishes: object) -> Job:
    defaults = {"name": "in/", "template": TEMPLATE, "model": MODEL, "input_format": format}
    return place.native(**{**defaults, **wishes})


def seen(place: Place, job: Job) -> list[Any]:
    """The parts of a dry run."""
    previewer = Previewer(sources=place.sources, locations=place.locations, line_bytes_max=LINE_BYTES_MAX)
    return list(previewer.preview(job.spec, DEFAULT_TENANT, None))


def put(place: Place, **contents: bytes) -> None:
    (place.bucket / "in").mkdir(exist_ok=True)
    for name, content in contents.items():
        (place.bucket / "in" / name).write_bytes(content)


@pytest.mark.parametrize("format", CONTENTS)
def test_objects_are_of_the_format_that_the_job_tells_whatever_their_names(place: Place, format: str) -> None:
    put(place, **{"part-00000": CONTENTS[format], "export.dat": CONTENTS[format]})

    job = planned(place, told(place, format))
    place.work_off()

    assert {shard.format for shard in place.shards(job)} == {format}
    assert place.job(job).counts.succeeded == 4


def test_a_packed_object_is_unpacked_as_its_first_bytes_say(place: Place) -> None:
    put(place, export=gzip.compress(CONTENTS["csv"]))

    job = planned(place, told(place, "csv"))
    place.work_off()

    assert place.job(job).counts.succeeded == 2


def test_images_need_no_ending(place: Place) -> None:
    put(place, **{"5f3a": b"any bytes", "77b0": b"others"})
    template = {"model": MODEL, "messages": [{"role": "user", "content": "{{name}}"}]}

    job = planned(place, told(place, "image", template=template))
    place.work_off()

    assert place.job(job).counts.succeeded == 2


def test_every_format_that_a_job_may_tell_is_tested_here() -> None:
    assert set(INPUT_FORMATS) == {*CONTENTS, "image", "delta"}


def test_an_uploaded_file_is_of_the_format_that_the_job_tells(place: Place) -> None:
    file = place.upload(CONTENTS["csv"], filename="export")

    job = planned(place, told(place, "csv", input=file.id))

    assert [shard.format for shard in place.shards(job)] == ["csv"]


def test_another_content_is_refused_with_what_it_is_and_a_dry_run_says_the_same(place: Place) -> None:
    put(place, export=CONTENTS["parquet"])

    job = told(place, "csv")
    (problem,) = seen(place, job)
    failed = place.plan(job)

    assert failed.state is JobState.FAILED
    assert "It is Parquet: give it a name that ends in .parquet, or say" in failed.errors[0].message
    assert problem.message == failed.errors[0].message


def test_an_unknown_ending_is_refused_with_the_option_that_tells_the_format(place: Place) -> None:
    put(place, **{"export.dat": CONTENTS["csv"]})

    (error,) = place.plan(told(place, None)).errors

    assert "none of the endings that are understood" in error.message
    assert "'input_format' (--input-format)" in error.message


def test_a_retry_reads_the_lines_that_it_was_made_of(place: Place) -> None:
    put(place, export=b"text,n\na,1\nbad,2\n")
    job = planned(place, told(place, "csv"))
    place.work_off()
    job = assembled(place, job)

    again = planned(place, retry_of(place, job))
    place.work_off(lambda request: (200, {}))

    assert assembled(place, again).counts.succeeded == 1


def test_a_dry_run_reads_what_the_job_tells(place: Place) -> None:
    put(place, export=CONTENTS["tsv"])

    objects, rows = seen(place, told(place, "tsv"))

    assert (objects.formats, objects.separator) == (["tsv"], "\t")
    assert (rows.rows_checked, rows.problems) == (2, [])


@pytest.mark.parametrize("separator", [":", None])
def test_a_separator_holds_from_the_plan_to_a_retry(place: Place, separator: str | None) -> None:
    put(place, **{"a.csv": b"text;n\na;1\nbad;2\n".replace(b";", (separator or ";").encode())})
    job = told(place, None, separator=separator)
    objects, rows = seen(place, job)
    job = planned(place, job)
    place.work_off()
    job = assembled(place, job)

    assert (objects.separator, rows.problems) == (separator or ";", [])
    assert (job.counts.succeeded, job.counts.failed) == (1, 1)
    again = planned(place, retry_of(place, job))
    place.work_off(lambda request: (200, {}))
    assert assembled(place, again).counts.succeeded == 1
