"""Staged writes in S3: a multipart upload that one process begins and another may complete.

An upload that was aborted cannot be completed by any client: this is what fences a late writer.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from nightshift.errors import ObjectNotFound, StorageError
from nightshift.objectstore.etags import normalised_etag
from nightshift.objectstore.objects import (
    Measured,
    ObjectChanged,
    ObjectInfo,
    Staged,
    StagedUpload,
    pieces_of,
)
from nightshift.objectstore.s3_errors import (
    UNKNOWN_TO_SERVER,
    code_of,
    server_time,
    status_of,
    storage_errors,
)
from nightshift.objectstore.s3_transfers import REQUEST_S, Multipart, parts_of
from nightshift.objectstore.time_limits import within

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

UPLOADS_PER_PAGE: Final = 1000  # S3's own limit

PRECONDITION_FAILED: Final = 412

_NO_SUCH_UPLOAD: Final = "NoSuchUpload"
_NO_LISTING: Final = UNKNOWN_TO_SERVER | {_NO_SUCH_UPLOAD, "MethodNotAllowed"}
_MD5: Final = re.compile(r"[0-9a-fA-F]{32}")


class StagedUploads:
    """The multipart uploads in a bucket, by the objects' full keys."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def begin(self, full_key: str, content_type: str | None) -> str:
        with storage_errors(self._named(full_key)):
            return self._multipart(full_key).begin(content_type)

    def write(self, full_key: str, upload_id: str, pieces: Iterable[bytes]) -> Staged:
        """Raises ObjectNotFound if the upload was aborted or completed."""
        measured = Measured(pieces_of(pieces))
        with storage_errors(self._named(full_key)):
            try:
                etags = self._multipart(full_key).write(upload_id, parts_of(measured))
            except ClientError as error:
                if code_of(error) != _NO_SUCH_UPLOAD:
                    raise
                message = f"what was staged as {self._named(full_key)} has been discarded: stage it anew"
                raise ObjectNotFound(message) from error
        return Staged(
            upload_id=upload_id,
            size_bytes=measured.size_bytes,
            sha256=measured.sha256,
            part_etags=tuple(etags),
        )

    def copy(self, full_key: str, upload_id: str, source_key: str, source: ObjectInfo) -> Staged:
        """`source_key`: in full. Raises ObjectNotFound, and ObjectChanged for another object."""
        assert source.sha256 is not None, "the server computes none"
        with storage_errors(self._named(source_key)):
            try:
                etags = self._multipart(full_key).copy(upload_id, source_key, source.etag, source.size_bytes)
            except ClientError as error:
                if status_of(error) != PRECONDITION_FAILED:
                    raise
                raise ObjectChanged(f"{self._named(source_key)} is another object by now") from error
        return Staged(
            upload_id=upload_id,
            size_bytes=source.size_bytes,
            sha256=source.sha256,
            part_etags=tuple(etags),
        )

    def publish(self, full_key: str, staged: Staged) -> bool:
        """False: there is no such upload any more."""
        with storage_errors(self._named(full_key)):
            try:
                self._multipart(full_key).complete(staged.upload_id, staged.part_etags)
            except ClientError as error:
                if code_of(error) != _NO_SUCH_UPLOAD:
                    raise
                return False
        return True

    def discard(self, full_key: str, upload_id: str) -> None:
        with storage_errors(self._named(full_key)):
            try:
                self._multipart(full_key).abort(upload_id)
            except ClientError as error:
                if code_of(error) != _NO_SUCH_UPLOAD:
                    raise

    def list(self, prefix: str, older_than: timedelta | None) -> Iterator[StagedUpload]:
        """With their full keys. A server that lists none, or cannot list them, has none."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=prefix, PaginationConfig={"PageSize": UPLOADS_PER_PAGE}
        )
        for page in self._pages(iter(pages), prefix):
            latest = None if older_than is None else server_time(page) - older_than
            for upload in page.get("Uploads", []):
                if latest is None or upload["Initiated"] <= latest:
                    yield StagedUpload(upload["Key"], upload["UploadId"], upload["Initiated"])

    def _pages(self, pages: Iterator[Any], prefix: str) -> Iterator[Any]:
        """Each page has the time limit of a request."""
        while True:
            try:
                with storage_errors(self._named(prefix)), within(REQUEST_S):
                    page = next(pages, None)
            except StorageError as error:
                if code_of(error.__cause__) in _NO_LISTING:
                    return
                raise
            if page is None:
                return
            yield page

    def _multipart(self, full_key: str) -> Multipart:
        return Multipart(self._client, self._bucket, full_key)

    def _named(self, full_key: str) -> str:
        return f"s3://{self._bucket}/{full_key}"


def etag_of(staged: Staged) -> str | None:
    """The etag that most servers give the object. None: the parts' etags are not their bytes' MD5."""
    etags = [normalised_etag(etag) for etag in staged.part_etags]
    if any(_MD5.fullmatch(etag) is None for etag in etags):
        return None
    digests = b"".join(map(bytes.fromhex, etags))
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"
