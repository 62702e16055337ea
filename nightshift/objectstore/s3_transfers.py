"""Transfers of one object over several requests."""

import hashlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError

from nightshift.errors import StorageError, StorageUnavailable
from nightshift.jobs.backoff import Backoff
from nightshift.objectstore.objects import MIB, ObjectChanged, ObjectTooLarge, Staged
from nightshift.objectstore.s3_answers import (
    code_of,
    etag_in,
    normalised_etag,
    part_etag,
    sent_etag,
    status_of,
)
from nightshift.objectstore.time_limits import OutOfTime, TimedBody, within

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

REQUEST_S: Final = 60.0  # for one request with its retries, before time for its body is added
RESUMES_MAX: Final = 5  # a stream may break this often …
BYTES_PER_RESUME: Final = 4 * MIB  # … and once more per this many bytes received
STEP_BYTES: Final = 64 * 1024  # per read from a socket, between checks of the rate
SLOW_GRACE_S: Final = 30.0  # for which a stream may be slower than the next line
SLOW_BYTES_PER_S: Final = 16 * 1024  # a slower transfer counts as hanging

PART_BYTES: Final = 16 * MIB  # of a multipart upload, except the last; a writer holds two
PARTS_MAX: Final = 10_000  # S3's own limit
CONFLICT_TRIES_MAX: Final = 5  # of a conditional write that the server asks to repeat
_MD5: Final = re.compile(r"[0-9a-fA-F]{32}")
CONFLICT_RETRY: Final = Backoff(first_s=0.1, longest_s=2.0)


class Reader:
    """Reads one range of one object over as many connections as needed."""

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        key: str,
        start: int,
        end: int | None,
        if_match: str | None = None,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._position = start
        self._end = end  # the object's own end, once it is known to come first
        # The wanted object's, else that of the first answer.
        self._etag = None if if_match is None else normalised_etag(if_match)
        self._is_pinned = if_match is not None
        self._waited_s = 0.0
        self._received_bytes = 0

    def pieces(self, chunk_bytes: int) -> Iterator[bytes]:
        resumes = 0
        while not self._is_done:
            body = self._opened()
            if body is None:
                return
            try:
                with closing(body):
                    yield from self._read(body, min(chunk_bytes, STEP_BYTES))
            except (HTTPClientError, IncompleteReadError) as error:
                resumes += 1
                if resumes > RESUMES_MAX + self._received_bytes // BYTES_PER_RESUME:
                    raise StorageUnavailable(
                        f"{self._key} broke off at byte {self._position}: {error}"
                    ) from error

    @property
    def _is_done(self) -> bool:
        return self._end is not None and self._position >= self._end

    def _opened(self) -> "StreamingBody | None":
        """The rest of the range, or None if the object ends before it."""
        wanted: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key}
        if self._position > 0 or self._end is not None:
            wanted["Range"] = f"bytes={self._position}-{'' if self._end is None else self._end - 1}"
        if self._etag is not None:
            wanted["IfMatch"] = sent_etag(self._etag)
        try:
            with within(REQUEST_S):
                answer = self._client.get_object(**wanted)
        except ClientError as error:
            if code_of(error) == "InvalidRange" or status_of(error) == 416:
                return None
            if status_of(error) == 412:
                raise self._replaced() from error
            raise
        try:
            etag = etag_in(answer, self._key)
            if self._etag not in (None, etag):  # the server ignores conditions
                raise self._replaced()
            self._etag = etag
            total_bytes = _total_bytes(answer.get("ContentRange"), answer["ContentLength"])
        except BaseException:
            answer["Body"].close()  # with what is left of it, and its connection
            raise
        self._end = total_bytes if self._end is None else min(self._end, total_bytes)
        return answer["Body"]

    def _replaced(self) -> StorageError:
        if self._is_pinned:
            return ObjectChanged(f"{self._key} is not the object it was when it was first looked at")
        return StorageUnavailable(f"{self._key} was replaced while it was read")

    def _read(self, body: "StreamingBody", step_bytes: int) -> Iterator[bytes]:
        while not self._is_done:
            assert self._end is not None, "the first answer says where the range ends"
            began_s = time.monotonic()
            piece = body.read(min(step_bytes, self._end - self._position))
            self._waited_s += time.monotonic() - began_s
            if not piece:
                raise IncompleteReadError(actual_bytes=self._position, expected_bytes=self._end)
            self._position += len(piece)
            self._received_bytes += len(piece)
            self._check_rate()
            yield piece

    def _check_rate(self) -> None:
        """A trickle never triggers a socket timeout, so the average rate is checked."""
        if self._waited_s > SLOW_GRACE_S and self._received_bytes < self._waited_s * SLOW_BYTES_PER_S:
            raise StorageUnavailable(
                f"{self._key} arrives at {self._received_bytes / self._waited_s:.0f} bytes/s: as good as not"
            )


class Writer:
    """Writes an object in one request, or in parts if it is large."""

    def __init__(
        self, client: "S3Client", bucket: str, key: str, content_type: str | None, must_be_new: bool
    ) -> None:
        self._client = client
        self._multipart = Multipart(client, bucket, key)
        self._target: dict[str, Any] = {"Bucket": bucket, "Key": key}
        self._content_type = content_type
        self._condition: dict[str, Any] = {"IfNoneMatch": "*"} if must_be_new else {}

    def write(self, pieces: Iterable[bytes]) -> Mapping[str, Any]:
        """Returns S3's answer to the request that created the object."""
        parts = _filled(pieces, PART_BYTES)
        first, second = next(parts, b""), next(parts, None)
        if second is None:
            return self._write_small(first)
        return self._write_parts(itertools.chain((first, second), parts))

    def _write_small(self, body: bytes) -> Mapping[str, Any]:
        kind: dict[str, Any] = {"ContentType": self._content_type} if self._content_type else {}
        for tried in range(1, CONFLICT_TRIES_MAX + 1):
            try:
                with _time_for(body):
                    return self._client.put_object(
                        **self._target, **kind, **self._condition, Body=TimedBody(body)
                    )
            except ClientError as error:
                if code_of(error) != "ConditionalRequestConflict":
                    raise
                time.sleep(CONFLICT_RETRY.delay_s(tried))
        raise StorageUnavailable(f"{self._target['Key']}: another writer keeps changing it")

    def _write_parts(self, parts: Iterable[bytes]) -> Mapping[str, Any]:
        upload_id = self._multipart.begin(self._content_type)
        try:
            etags = self._multipart.write(upload_id, parts)
            return self._multipart.complete(upload_id, etags, **self._condition)
        except BaseException:
            with suppress(ClientError, BotoCoreError, OutOfTime):  # the first error is raised
                self._multipart.abort(upload_id)
            raise


class Multipart:
    """Multipart uploads of one object."""

    def __init__(self, client: "S3Client", bucket: str, key: str) -> None:
        self._client = client
        self._target: dict[str, Any] = {"Bucket": bucket, "Key": key}

    def begin(self, content_type: str | None) -> str:
        kind: dict[str, Any] = {"ContentType": content_type} if content_type else {}
        with within(REQUEST_S):
            return self._client.create_multipart_upload(**self._target, **kind)["UploadId"]

    def write(self, upload_id: str, parts: Iterable[bytes]) -> list[str]:
        """Returns the parts' etags."""
        return [self._write_part(upload_id, number, part) for number, part in enumerate(parts, start=1)]

    def complete(self, upload_id: str, etags: Sequence[str], **condition: Any) -> Mapping[str, Any]:
        parts: list[CompletedPartTypeDef] = [
            {"ETag": etag, "PartNumber": number} for number, etag in enumerate(etags, start=1)
        ]
        with within(REQUEST_S):
            return self._client.complete_multipart_upload(
                **self._target, **condition, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )

    def abort(self, upload_id: str) -> None:
        with within(REQUEST_S):
            self._client.abort_multipart_upload(**self._target, UploadId=upload_id)

    def _write_part(self, upload_id: str, number: int, body: bytes) -> str:
        if number > PARTS_MAX:
            raise ObjectTooLarge(
                f"{self._target['Key']} exceeds the {PARTS_MAX * PART_BYTES} bytes an object may have"
            )
        with _time_for(body):
            answer = self._client.upload_part(
                **self._target, UploadId=upload_id, PartNumber=number, Body=TimedBody(body)
            )
        return part_etag(answer, self._target["Key"])


def _time_for(body: bytes) -> AbstractContextManager[None]:
    """A request's time limit for this body."""
    return within(REQUEST_S + len(body) / SLOW_BYTES_PER_S)


def etag_of_parts(staged: Staged) -> str | None:
    """The etag that most servers give the object. None: the parts' etags are not their bytes' MD5."""
    etags = [normalised_etag(etag) for etag in staged.part_etags]
    if any(_MD5.fullmatch(etag) is None for etag in etags):
        return None
    digests = b"".join(map(bytes.fromhex, etags))
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def parts_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A body as parts of an upload: at least one, which may be empty."""
    parts = _filled(pieces, PART_BYTES)
    yield next(parts, b"")
    yield from parts


def _filled(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of exactly `size_bytes`, except the last. Input pieces are no larger."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= size_bytes:
            yield bytes(held[:size_bytes])
            del held[:size_bytes]
    if held:
        yield bytes(held)


def _total_bytes(content_range: str | None, content_length: int) -> int:
    """The size of the whole object: 200 for `bytes 0-9/200`, or the length of an answer without a range."""
    return int(content_range.rpartition("/")[2]) if content_range else content_length
