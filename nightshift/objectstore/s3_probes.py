"""Which conditions of S3's an S3 server enforces. Some accept them and ignore them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.errors import StorageError
from nightshift.objectstore.s3_errors import UNKNOWN_TO_SERVER, code_of, status_of, storage_errors

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PRECONDITION_FAILED: Final = 412
NO_ETAG: Final = '"00000000000000000000000000000000"'


@dataclass(frozen=True)
class Conditions:
    """What the server refuses."""

    replacing: bool  # a PUT with If-None-Match: * of an object that exists
    replacing_another: bool  # a PUT with If-Match of another etag
    reading_another: bool  # a GET with If-Match of another etag


def probe_conditions(client: "S3Client", bucket: str, key: str) -> Conditions:
    """Try each on an object under this key, which is removed again. Raises StorageError."""

    def put(body: bytes, **condition: Any) -> None:
        client.put_object(Bucket=bucket, Key=key, Body=body, **condition)

    def get(etag: str) -> None:
        client.get_object(Bucket=bucket, Key=key, IfMatch=etag)["Body"].close()

    try:
        with storage_errors(f"s3://{bucket}/{key}"):
            put(b"1")
            return Conditions(
                replacing=_is_refused(lambda: put(b"2", IfNoneMatch="*")),
                replacing_another=_is_refused(lambda: put(b"3", IfMatch=NO_ETAG)),
                reading_another=_is_refused(lambda: get(NO_ETAG)),
            )
    finally:
        with suppress(ClientError, BotoCoreError, StorageError):
            client.delete_object(Bucket=bucket, Key=key)


def _is_refused(call: Callable[[], object]) -> bool:
    """False: it was carried out, or the server does not know the condition."""
    try:
        call()
    except ClientError as error:
        if status_of(error) == PRECONDITION_FAILED:
            return True
        if code_of(error) in UNKNOWN_TO_SERVER:
            return False
        raise
    return False
