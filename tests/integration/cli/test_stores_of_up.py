"""Messages of `nightshift up` about object stores that take no requests, on a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli.processes.up import store_probes
from nightshift.cli.session import data_settings
from tests.integration.objectstore.s3_faults import ANY, Fault, FaultyS3, Refused, Unreachable, faulty_s3
from tests.integration.servers import S3Server

OWN = "the service's object store"


@pytest.fixture
def front(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyS3]:
    monkeypatch.setattr("nightshift.objectstore.s3.REQUEST_TRIES_MAX", 1)
    monkeypatch.setenv("NIGHTSHIFT_DATA_DIR", str(tmp_path))
    with faulty_s3(moto_server) as front, front.server().in_environment():
        yield front


@pytest.fixture
def bucket(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """It is the service's own and a job's, in turn."""
    bucket = moto_server.new_bucket()
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", f"s3://{bucket}/own")
    monkeypatch.setenv("NIGHTSHIFT_S3_BUCKETS", f"{bucket}/in,acme={bucket}/acme")
    return bucket


def reasons() -> dict[str, str | None]:
    return {name: probe() for name, probe in store_probes(data_settings()).items()}


def test_stores_that_take_requests_have_no_reason(front: FaultyS3, bucket: str) -> None:
    assert reasons() == {OWN: None, f"the jobs' bucket {bucket}": None}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Refused(403, "InvalidAccessKeyId"), "InvalidAccessKeyId"),
        (Refused(400, "ExpiredToken"), "ExpiredToken"),
        (Refused(503, "SlowDown"), "SlowDown"),
        (Unreachable(), "Connection was closed"),
    ],
)
def test_each_store_that_refuses_or_is_away_has_its_reason(
    front: FaultyS3, bucket: str, fault: Fault, words: str
) -> None:
    front.set(ANY, fault)
    told = reasons()
    assert list(told) == [OWN, f"the jobs' bucket {bucket}"]
    assert all(words in (reason or "") for reason in told.values())
    front.heal()
    assert set(reasons().values()) == {None}


def test_a_bucket_that_is_not_there_is_named(front: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", "s3://not-there-own/x")
    monkeypatch.setenv("NIGHTSHIFT_S3_BUCKETS", "not-there-inbox")
    told = reasons()
    assert "not-there-own" in (told[OWN] or "")
    assert "NoSuchBucket" in (told["the jobs' bucket not-there-inbox"] or "")


def test_a_store_that_can_be_read_and_not_written_is_told_of(front: FaultyS3, bucket: str) -> None:
    front.set("PUT", Refused(403, "AccessDenied"))
    told = reasons()
    assert "AccessDenied" in (told[OWN] or "")
    assert told[f"the jobs' bucket {bucket}"] is None


def test_a_jobs_bucket_that_may_not_be_listed_may_be_read(front: FaultyS3, bucket: str) -> None:
    front.set("GET", Refused(403, "AccessDenied"), path="list-type")
    assert reasons()[f"the jobs' bucket {bucket}"] is None


def test_the_embedded_store_is_not_asked(front: FaultyS3) -> None:
    assert reasons() == {}
