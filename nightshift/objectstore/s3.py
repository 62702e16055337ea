"""Objects in S3 or a compatible server.

Endpoint and credentials come from the standard AWS environment. Requests have timeouts and bounded retries; a
broken body is resumed at the byte where it broke, while the object is the same.
"""

import os
import threading
import uuid
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from nightshift.errors import ObjectExists, ObjectNotFound, StorageError, StorageUnavailable
from nightshift.objectstore.fences import check_fence, guard
from nightshift.objectstore.objects import (
    READ_BYTES_MAX,
    STREAM_CHUNK_BYTES,
    TEMPORARY_PREFIX,
    Measured,
    ObjectInfo,
    Staged,
    StagedUpload,
    already_published,
    checked_key,
    checked_prefix,
    has_bytes,
    pieces_of,
    read_whole,
)
from nightshift.objectstore.s3_answers import (
    UNKNOWN_TO_SERVER,
    Conditions,
    UploadGone,
    code_of,
    etag_in,
    probe_conditions,
    refuses_replacing,
    server_time,
    status_of,
    storage_errors,
)
from nightshift.objectstore.s3_transfers import (
    REQUEST_S,
    Multipart,
    Reader,
    Writer,
    etag_of_parts,
    parts_of,
)
from nightshift.objectstore.time_limits import watch, within

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 20  # of silence on a connection
REQUEST_TRIES_MAX: Final = 5  # of one request, with growing pauses: botocore's standard mode
UPLOADS_PER_PAGE: Final = 1000  # S3's own limit
CONNECTIONS_MAX: Final = 32  # kept open between requests

_REFUSED: Final = (400, 401, 403)
_NO_LISTING: Final = UNKNOWN_TO_SERVER | {"NoSuchUpload", "MethodNotAllowed"}


def s3_client() -> "S3Client":
    """A client configured by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and the other AWS variables."""
    session = boto3.session.Session()
    has_endpoint = bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": REQUEST_TRIES_MAX},
        max_pool_connections=CONNECTIONS_MAX,
        signature_version="s3v4",
        s3={"addressing_style": "path" if has_endpoint else "auto"},
        # A server that sends the whole object's checksum with a range would fail every range read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client("s3", region_name=session.region_name or "us-east-1", config=config)
    watch(client)
    guard(client)
    return client


class S3Store:
    """An `ObjectStore` in one bucket, under a prefix."""

    def __init__(self, client: "S3Client", bucket: str, prefix: str = "") -> None:
        """`prefix`: a folder of the bucket, without slashes around it; empty: the whole bucket."""
        self._client = client
        self._bucket = bucket
        self._prefix = f"{checked_key(prefix)}/" if prefix else ""
        self._probe_lock = threading.Lock()
        self._probed: bool | None = None

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".removesuffix("/")

    @property
    def supports_conditional_put(self) -> bool:
        with self._probe_lock:
            if self._probed is None:
                with within(REQUEST_S):
                    self._probed = refuses_replacing(self._client, self._bucket, self._temporary_key())
            return self._probed

    def conditions(self) -> Conditions:
        """Tries which conditional requests the server enforces. Raises StorageError."""
        with within(REQUEST_S):
            return probe_conditions(self._client, self._bucket, self._temporary_key())

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with storage_errors(self._named(key)), within(REQUEST_S):
                answer = self._head_object(self._full(key))
        except ObjectNotFound:
            return None
        return ObjectInfo(
            key=key,
            size_bytes=answer["ContentLength"],
            etag=etag_in(answer, self._named(key)),
            modified_at=answer["LastModified"],
        )

    def _head_object(self, full_key: str) -> "HeadObjectOutputTypeDef":
        """A refused HEAD has no body, so a GET fetches the reason."""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=full_key)
        except ClientError as error:
            if status_of(error) in _REFUSED:
                self._client.get_object(Bucket=self._bucket, Key=full_key, Range="bytes=0-0")["Body"].close()
            raise

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        return read_whole(self, key, self._named(key), size_bytes_max)

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        with storage_errors(self._named(key)):
            reader = Reader(self._client, self._bucket, self._full(key), start, end, if_match)
            yield from reader.pieces(chunk_bytes)

    def put(
        self,
        key: str,
        data: bytes | Iterable[bytes],
        *,
        if_absent: bool = False,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> ObjectInfo:
        with within(deadline_s):
            return self._put(key, data, if_absent, content_type)

    def _put(
        self, key: str, data: bytes | Iterable[bytes], if_absent: bool, content_type: str | None
    ) -> ObjectInfo:
        full_key = self._full(key)
        measured = Measured(pieces_of(data))
        server_refuses = if_absent and self.supports_conditional_put
        if if_absent and not server_refuses and self.head(key) is not None:
            return self._existing(key, measured)
        writer = Writer(self._client, self._bucket, full_key, content_type, must_be_new=server_refuses)
        try:
            with storage_errors(self._named(key)):
                answer = writer.write(measured)
        except ObjectExists:
            return self._existing(key, measured)
        return ObjectInfo(
            key=key,
            size_bytes=measured.size_bytes,
            etag=etag_in(answer, self._named(key)),
            modified_at=server_time(answer),
            sha256=measured.sha256,
        )

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket,
            Prefix=self._prefix + checked_prefix(prefix),
            StartAfter=self._prefix + start_after if start_after else "",
        )
        with storage_errors(self._named(prefix)):
            for entry in _entries(iter(pages), self._named(prefix)):
                key = entry["Key"].removeprefix(self._prefix)
                if not _is_marker(key, entry["Size"]):
                    yield ObjectInfo(
                        key=key,
                        size_bytes=entry["Size"],
                        etag=etag_in(entry, self._named(key)),
                        modified_at=entry["LastModified"],
                    )

    def delete(self, key: str) -> None:
        with suppress(ObjectNotFound), storage_errors(self._named(key)), within(REQUEST_S):
            self._client.delete_object(Bucket=self._bucket, Key=self._full(key))

    def stage(self, key: str, *, content_type: str | None = None) -> str:
        with storage_errors(self._named(key)):
            return self._multipart(key).begin(content_type)

    def write_staged(
        self, key: str, upload_id: str, pieces: Iterable[bytes], *, deadline_s: float | None = None
    ) -> Staged:
        measured = Measured(pieces_of(pieces))
        try:
            with within(deadline_s), storage_errors(self._named(key)):
                etags = self._multipart(key).write(upload_id, parts_of(measured))
        except UploadGone as error:
            message = f"what was staged as {self._named(key)} has been discarded: stage it anew"
            raise ObjectNotFound(message) from error
        return Staged(
            upload_id=upload_id,
            size_bytes=measured.size_bytes,
            sha256=measured.sha256,
            part_etags=tuple(etags),
        )

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        is_ours = False
        with suppress(UploadGone), storage_errors(self._named(key)):
            self._multipart(key).complete(staged.upload_id, staged.part_etags)
            is_ours = True
        # Some servers give the object another etag than they answer with.
        info = self.head(key)
        has_size = info is not None and info.size_bytes == staged.size_bytes
        if info is not None and has_size and (is_ours or info.etag == etag_of_parts(staged)):
            return replace(info, sha256=staged.sha256)
        if is_ours:
            raise StorageUnavailable(f"{self._named(key)} was replaced as it was published")
        return already_published(self, key, staged)

    def discard(self, key: str, upload_id: str) -> None:
        check_fence()
        self._abort(self._full(key), upload_id)

    def staged(self, prefix: str = "", older_than: timedelta | None = None) -> Iterator[StagedUpload]:
        name, full_prefix = self._named(prefix), self._prefix + checked_prefix(prefix)
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=full_prefix, PaginationConfig={"PageSize": UPLOADS_PER_PAGE}
        )
        for page in _pages_of_uploads(iter(pages), name):
            latest = None if older_than is None else server_time(page) - older_than
            for upload in page.get("Uploads", []):
                if latest is None or upload["Initiated"] <= latest:
                    key = upload["Key"].removeprefix(self._prefix)
                    yield StagedUpload(key, upload["UploadId"], upload["Initiated"])

    def forget_unfinished(self, older_than: timedelta, kept: Container[str] = ()) -> int:
        count = 0
        for upload in self.staged("", older_than):
            if upload.upload_id not in kept:
                with suppress(ObjectNotFound, StorageUnavailable):
                    self._abort(self._prefix + upload.key, upload.upload_id)
                count += 1
        return count

    def close(self) -> None:
        self._client.close()

    def _temporary_key(self) -> str:
        return f"{self._prefix}{TEMPORARY_PREFIX}{uuid.uuid4().hex}"

    def _abort(self, full_key: str, upload_id: str) -> None:
        with suppress(UploadGone), storage_errors(f"s3://{self._bucket}/{full_key}"):
            Multipart(self._client, self._bucket, full_key).abort(upload_id)

    def _multipart(self, key: str) -> Multipart:
        return Multipart(self._client, self._bucket, self._full(key))

    def _full(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _named(self, key: str) -> str:
        """The object's URI, for messages."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _existing(self, key: str, measured: Measured) -> ObjectInfo:
        """The object under the key. Raises `ObjectExists` unless it has the measured bytes."""
        for _ in measured:  # the unread rest of the body
            continue
        info = self.head(key)
        if info is None:
            raise StorageUnavailable(f"{self._named(key)} was there a moment ago, and is not now")
        if not has_bytes(self, info, measured.size_bytes, measured.sha256):
            raise ObjectExists(f"{self._named(key)} exists already, with other bytes")
        return replace(info, sha256=measured.sha256)


def _entries(pages: Iterator[Any], name: str) -> Iterator[Any]:
    """A listing's entries; each page has the time limit of a request. `name`: of what is listed.

    Raises StorageError for a page that does not say where the next one begins: objects would be left out.
    """
    while True:
        with within(REQUEST_S):
            page = next(pages, None)
        if page is None:
            return
        yield from page.get("Contents", [])
        if page.get("IsTruncated") and not page.get("NextContinuationToken"):
            raise StorageError(
                f"{name}: the server has more objects and does not say how the listing goes on"
            )


def _pages_of_uploads(pages: Iterator[Any], name: str) -> Iterator[Any]:
    """The pages, each with the time limit of a request. A server that cannot list uploads has none."""
    while True:
        try:
            with storage_errors(name), within(REQUEST_S):
                page = next(pages, None)
        except StorageError as error:
            if code_of(error.__cause__) in _NO_LISTING:
                return
            raise
        if page is None:
            return
        yield page


def _is_marker(key: str, size_bytes: int) -> bool:
    """Whether an object is a console's folder, which has no bytes, the store's root or our own probe."""
    is_folder = key.endswith("/") and size_bytes == 0
    return not key or is_folder or key.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
