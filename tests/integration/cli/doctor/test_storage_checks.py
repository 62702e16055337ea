"""Doctor's findings about the object store: a directory, servers with and without conditions, faulty ones."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli.doctor.checks import storage as storage_checks
from nightshift.cli.doctor.examination import Status
from nightshift.jobs.files import UNRECORDED_S
from nightshift.objectstore import open_store
from nightshift.objectstore.s3_answers import Conditions, probe_conditions
from scheduler.duties.retention import Retention
from tests.integration.cli.doctor.conftest import Look, expect
from tests.integration.objectstore.s3_faults import FaultyS3, Pretended, Refused, Slow, WrongClock, faulty_s3
from tests.integration.servers import S3Server, free_port

OF_STORAGE = ("storage", "storage.multipart", "storage.latency", "storage.clock", "storage.uploads")


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket as the installation's store. Its name."""
    bucket = server.new_bucket()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", f"s3://{bucket}/under/a/prefix")
    return bucket


@pytest.fixture(params=["directory", "moto", "rclone"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "directory":
        use(request.getfixturevalue(f"{request.param}_server"), monkeypatch)
    return str(request.param)


@pytest.fixture
def front(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """A way to moto on which things go wrong, as the installation's store."""
    bucket = moto_server.new_bucket()
    with faulty_s3(moto_server) as front:
        for name, value in front.server().environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", f"s3://{bucket}")
        yield front


def test_a_store_that_works_is_well_and_is_left_as_it_was(look: Look, kind: str, data_dir: Path):
    assert [id for id in OF_STORAGE if look(id).status is not Status.OK] == []
    url = os.environ.get("NIGHTSHIFT_STORAGE_URL") or (data_dir / "objects").as_uri()
    store = open_store(url)
    assert (list(store.list()), list(store.staged())) == ([], [])
    store.close()


def test_conditions_are_enforced_or_it_is_said_what_follows(look: Look, kind: str):
    finding = look("storage.conditions")
    if kind == "rclone":
        assert finding.status is Status.WARNING
        assert "If-None-Match on a PUT: ignored" in finding.detail
        assert "results are safe without them" in finding.advice
        assert "s3://bucket-" in finding.advice
    else:
        assert (finding.status, finding.advice) == (Status.OK, "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("moto", Conditions(replacing=True, replacing_another=True, reading_another=True)),
        ("rclone", Conditions(replacing=False, replacing_another=False, reading_another=False)),
    ],
)
def test_each_condition_is_tried_on_the_server(request, name: str, expected: Conditions):
    server: S3Server = request.getfixturevalue(f"{name}_server")
    bucket = server.new_bucket()
    kept = probe_conditions(server.client, bucket, "probe")
    assert (kept.replacing, kept.replacing_another) == (
        expected.replacing,
        expected.replacing_another,
    )
    assert "Contents" not in server.client.list_objects_v2(Bucket=bucket)


def test_a_store_without_the_right_to_write_is_an_error(look: Look, front: FaultyS3):
    front.set("PUT", Refused(403, "AccessDenied"))
    expect(look("storage"), Status.ERROR, "AccessDenied", "AWS_SECRET_ACCESS_KEY")


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", (tmp_path / "file" / "objects").as_uri())

    finding = expect(look("storage"), Status.ERROR)
    assert finding.advice == (
        f"The directory {tmp_path}/file/objects of objects cannot be made: Not a directory"
    )


def test_a_store_that_does_not_answer_is_an_error_that_names_its_settings(
    look: Look, front: FaultyS3, monkeypatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    expect(look("storage"), Status.ERROR, "Could not connect", "AWS_ENDPOINT_URL")


def test_a_store_without_uploads_in_parts_is_an_error(look: Look, front: FaultyS3):
    front.set("POST", Refused(403, "AccessDenied"), path="uploads")
    assert look("storage").status is Status.OK
    assert look("storage.multipart").status is Status.ERROR


def test_a_store_that_publishes_what_was_aborted_is_an_error(look: Look, front: FaultyS3):
    front.set("DELETE", Pretended(), path="uploadId=")
    expect(look("storage.multipart"), Status.ERROR, "aborted was published all the same")


def test_a_slow_store_is_a_warning_with_its_times(look: Look, front: FaultyS3, monkeypatch):
    monkeypatch.setattr(storage_checks, "SLOW_MS", 5_000.0)  # this machine may be busy
    assert look("storage.latency").status is Status.OK
    monkeypatch.setattr(storage_checks, "SLOW_MS", 100.0)
    monkeypatch.setattr(storage_checks, "SAMPLES", 1)
    front.set("GET", Slow(delay_s=0.2))
    finding = expect(look("storage.latency"), Status.WARNING)
    assert finding.figures["get_ms"] >= 200
    assert finding.figures["range_get_ms"] >= 200


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(0, Status.OK), (30, Status.WARNING), (-30, Status.WARNING), (3600, Status.ERROR)]
)
def test_the_stores_clock_is_its_date_header(look: Look, front: FaultyS3, ahead_s, status):
    front.set("PUT", WrongClock(ahead_s))
    assert look("storage.clock").status is status


def test_uploads_that_were_left_behind_are_counted_with_their_age(look: Look, monkeypatch, rclone_server):
    use(rclone_server, monkeypatch)
    store = open_store(os.environ["NIGHTSHIFT_STORAGE_URL"])
    for key in ("results/a", "results/b"):
        store.stage(key)
    finding = look("storage.uploads")
    assert (finding.status, finding.figures["uploads"]) == (Status.OK, 2), "they are young"
    assert "2 unfinished uploads, the oldest 0 min old" in finding.detail
    for upload in list(store.staged()):
        store.discard(upload.key, upload.upload_id)
    assert look("storage.uploads").detail == "none"
    store.close()


def test_an_old_upload_in_s3_is_a_warning(look: Look, monkeypatch, moto_server):
    """moto says of every upload that it was begun in 2010."""
    use(moto_server, monkeypatch)
    store = open_store(os.environ["NIGHTSHIFT_STORAGE_URL"])
    store.stage("results/a")
    finding = look("storage.uploads")
    store.close()
    assert finding.status is Status.WARNING
    assert "s3:AbortMultipartUpload" in finding.advice


@pytest.fixture
def old_upload(data_dir: Path) -> str:
    """An upload to a directory that should have been aborted long ago."""
    store = open_store((data_dir / "objects").as_uri())
    upload_id = store.stage("results/a")
    (path,) = [path for path in (data_dir / "objects").rglob("*") if path.is_file()]
    os.utime(path, (path.stat().st_mtime - 3 * UNRECORDED_S,) * 2)
    return upload_id


def test_an_upload_that_retention_should_have_aborted_is_a_warning(look: Look, old_upload: str):
    expect(
        look("storage.uploads"),
        Status.WARNING,
        "the oldest 3 days old",
        "look for 'retention' in the scheduler's log",
    )


def age_all(folder: Path, seconds: float) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_retention_is_well_while_its_rounds_begin(look: Look, data_dir: Path, sqlite_database):
    from nightshift.store import Store

    objects = open_store((data_dir / "objects").as_uri())
    assert look("retention").status is Status.SKIPPED, "there is nothing to look at"
    objects.put("files/default/file_1", b"kept")
    age_all(data_dir / "objects", 3600)
    finding = look("retention")
    assert (finding.status, finding.detail) == (Status.WARNING, "the duty has never made a round")

    duty = Retention(Store(sqlite_database), objects)
    while duty.run_once(Store(sqlite_database).now()).has_more:
        continue
    assert look("retention").status is Status.OK

    age_all(data_dir / "objects", 3600)
    finding = look("retention")
    assert (finding.status, finding.detail) == (Status.WARNING, "the duty began its last round 60 min ago")
