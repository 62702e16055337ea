"""Abilities of S3 alone, and what becomes of objects when the server or the way to it fails."""

import os
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from nightshift.errors import StorageDenied, StorageUnavailable
from nightshift.objectstore import ObjectStore, open_store
from nightshift.objectstore.s3_transfers import PART_BYTES
from tests.integration.objectstore.test_objectstore import keys
from tests.integration.servers import S3Server, cutting_proxy


def test_stores_with_different_prefixes_of_one_bucket_do_not_see_each_other(bucket: str) -> None:
    with closing(open_store(f"s3://{bucket}/one")) as one, closing(open_store(f"s3://{bucket}/two/")) as two:
        one.put("k", b"1")
        two.put("k", b"2")

        assert (one.read("k"), two.read("k")) == (b"1", b"2")
        assert keys(one) == ["k"]


# --- faults ---


def through_proxy(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, port: int) -> ObjectStore:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    return open_store(f"s3://{bucket}")


def port_of(server: S3Server) -> int:
    port = urlsplit(server.endpoint).port
    assert port is not None
    return port


def test_a_body_cut_short_is_read_on_from_where_it_broke(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(2_000_000)
    with closing(open_store(f"s3://{bucket}")) as direct:
        direct.put("k", body)
    with (
        cutting_proxy(port_of(s3_server), cuts=3, after_bytes=400_000) as port,
        closing(through_proxy(s3_server, bucket, monkeypatch, port)) as store,
    ):
        assert b"".join(store.stream("k")) == body
        assert b"".join(store.stream("k", 123, 1_999_999)) == body[123:1_999_999]


def test_a_body_that_is_always_cut_short_is_an_error_and_not_a_short_object(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = moto_server.new_bucket()
    with closing(through_proxy(moto_server, bucket, monkeypatch, port_of(moto_server))) as direct:
        direct.put("k", b"x" * 2_000_000)
    with (
        cutting_proxy(port_of(moto_server), cuts=1000, after_bytes=600) as port,
        closing(through_proxy(moto_server, bucket, monkeypatch, port)) as store,
    ):
        monkeypatch.setattr("nightshift.objectstore.s3_transfers.RESUMES_MAX", 2)
        with pytest.raises(StorageUnavailable):
            list(store.stream("k"))


def test_a_wrong_secret_is_denied_and_not_retried_for_long(
    rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = rclone_server.new_bucket()
    store = through_proxy(rclone_server, bucket, monkeypatch, port_of(rclone_server))
    store.close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with closing(open_store(f"s3://{bucket}")) as store:
        with pytest.raises(StorageDenied):
            store.put("k", b"x")
        with pytest.raises(StorageDenied):
            store.head("k")


def test_a_missing_bucket_is_denied_with_its_name(s3_server: S3Server) -> None:
    with closing(open_store("s3://no-such-bucket-here")) as store:
        with pytest.raises(StorageDenied, match="no-such-bucket-here"):
            store.put("k", b"x")
        with pytest.raises(StorageDenied, match="no-such-bucket-here"):
            list(store.list())


def test_a_server_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch, moto_server: S3Server) -> None:
    monkeypatch.setattr("nightshift.objectstore.s3.REQUEST_TRIES_MAX", 1)
    with closing(through_proxy(moto_server, "bucket", monkeypatch, port=1)) as store:
        with pytest.raises(StorageUnavailable):
            store.put("k", b"x")


def test_a_failed_upload_in_parts_is_aborted_at_the_server(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = moto_server.new_bucket()

    def body() -> Iterator[bytes]:
        yield b"x" * (2 * PART_BYTES + 1)
        raise RuntimeError("the source broke")

    with closing(through_proxy(moto_server, bucket, monkeypatch, port_of(moto_server))) as store:
        with pytest.raises(RuntimeError):
            store.put("half", body())

    assert "Uploads" not in moto_server.client.list_multipart_uploads(Bucket=bucket)
