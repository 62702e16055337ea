"""The place of an output is looked at before any row is run for it."""

import pytest

from nightshift.errors import StorageDenied, StorageError, StorageUnavailable
from nightshift.jobs import Job, JobState
from nightshift.jobs.part import MANIFEST_NAME
from nightshift.objectstore import ObjectStore, ObjectUri
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.integration.scheduler.scheduling import TEMPLATE, FailingStore, Place, jsonl


@pytest.fixture
def place(place: Place) -> Place:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": text} for text in ("a", "b")))
    return place


def planned(place: Place, output: str = "out/") -> Job:
    return place.plan(place.native(template=TEMPLATE, output=place.uri(output)))


def refused(place: Place, job: Job) -> tuple[str, str | None]:
    """The code and the field of what the job failed with, before any row."""
    assert (job.state, place.shards(job), job.counts.total) == (JobState.FAILED, [], 0)
    return job.errors[0].code, job.errors[0].param


def outputs_fail(monkeypatch: pytest.MonkeyPatch, place: Place, error: StorageError) -> None:
    opened = place.locations.open
    failing = FailingStore(opened(ObjectUri.parse(place.uri("out/")), DEFAULT_TENANT), "stream", error)

    def open(location: ObjectUri, tenant_id: str) -> ObjectStore:
        return failing if "/out" in str(location) else opened(location, tenant_id)  # type: ignore[return-value]

    monkeypatch.setattr(place.locations, "open", open)


@pytest.mark.parametrize("name", ["_manifest.json", "_SUCCESS"])
def test_a_job_for_a_folder_of_anothers_output_runs_no_row(place: Place, name: str) -> None:
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / name).write_text("theirs")

    job = planned(place)

    assert refused(place, job) == ("output_not_ours", "output")
    assert place.out(name) == b"theirs"


@pytest.mark.parametrize("output", ["out", "out/"])
def test_a_job_for_a_file_runs_no_row(place: Place, output: str) -> None:
    (place.bucket / "out").write_text("theirs")

    assert refused(place, planned(place, output)) == ("output_not_a_folder", "output")


def test_a_job_for_a_place_that_refuses_runs_no_row(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs_fail(monkeypatch, place, StorageDenied())

    assert refused(place, planned(place)) == ("storage_denied", "output")


def test_a_job_for_a_place_that_is_not_allowed_runs_no_row(place: Place) -> None:
    job = place.plan(place.native(template=TEMPLATE, output="file:///elsewhere/out/"))

    assert refused(place, job) == ("location_not_allowed", "output")


def test_a_place_that_is_away_does_not_keep_rows_from_running(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs_fail(monkeypatch, place, StorageUnavailable())

    job = planned(place)

    assert job.planned_at is not None
    assert place.shards(job)
    assert not (place.bucket / "out").exists(), "looking makes no folder"


def test_the_folder_of_last_nights_run_is_ours(place: Place) -> None:
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / MANIFEST_NAME).write_text('{"job_id": "job_1", "parts": []}')

    assert planned(place).planned_at is not None
