"""S3's answers: their errors as ours, their entity tags and times, and which conditions a server enforces.

Servers and the proxies before them write one entity tag in several ways: `"5d41"`, `5d41`, `W/"5d41"`. Tags
are held and compared without what differs, and sent with quotes, as HTTP wants them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from nightshift.errors import (
    CredentialsRefused,
    ObjectExists,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore.time_limits import OutOfTime

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PRECONDITION_FAILED: Final = 412
NO_ETAG: Final = '"00000000000000000000000000000000"'
UNKNOWN_TO_SERVER: Final = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest"})

_DENIED: Final = frozenset({"NoSuchBucket", "AccessDenied"})
_ABOUT_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)


class UploadGone(StorageUnavailable):
    """The upload was completed or removed. Writing the object again helps."""


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Translates S3's errors; `name` begins the message."""
    try:
        yield
    except OutOfTime as error:
        raise OutOfTime(f"{name}: {error}") from error
    except ClientError as error:
        raise _translated(name, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise CredentialsRefused(f"{name}: {error}; {advice}") from error
    except ParamValidationError as error:
        raise StorageError(f"{name}: {error}") from error
    except BotoCoreError as error:
        raise StorageUnavailable(f"{name}: {error}") from error


def _translated(name: str, error: ClientError) -> StorageError:
    status, code = status_of(error), code_of(error)
    said = f"{name}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _ABOUT_CREDENTIALS:
        return CredentialsRefused(said)
    if code in _DENIED or status in (401, 403):
        return StorageDenied(said)
    if status == 412:
        return ObjectExists(said)
    if code == "NoSuchUpload":
        return UploadGone(said)
    if status == 404:
        return ObjectNotFound(f"no such object: {name}")
    if status == 501:  # the server does not know such requests
        return StorageError(said)
    if status >= 500 or status in (408, 409, 429) or code in ("SlowDown", "RequestTimeout"):
        return StorageUnavailable(said)
    return StorageError(said)


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: BaseException | None) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def server_time(answer: Mapping[str, Any]) -> datetime:
    """The time of the answer by the server's clock."""
    header = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(header).astimezone(UTC) if header else datetime.now(UTC)


def normalised_etag(text: str) -> str:
    """The tag without space around it, the mark of a weak one, and quotes."""
    return text.strip().removeprefix("W/").strip().strip('"')


def etag_in(answer: Mapping[str, Any], name: str) -> str:
    """The tag in S3's answer, or in an entry of a listing. `name`: of the object.

    Raises StorageError for an answer without one: no change of the object could be noticed.
    """
    etag = normalised_etag(answer.get("ETag") or "")
    if not etag:
        raise StorageError(f"{name}: the server says no ETag, so no change of the object could be noticed")
    return etag


def sent_etag(etag: str) -> str:
    """A tag as the value of If-Match."""
    return f'"{normalised_etag(etag)}"'


def part_etag(answer: Mapping[str, Any], name: str) -> str:
    """The tag of an upload's part in the form in which the server gave it, to be handed back at the end."""
    etag_in(answer, name)
    return str(answer["ETag"]).strip().removeprefix("W/")


@dataclass(frozen=True)
class Conditions:
    """Requests that the server refuses."""

    replacing: bool  # a PUT with If-None-Match: * of an object that exists
    replacing_another: bool  # a PUT with If-Match of another etag
    reading_another: bool  # a GET with If-Match of another etag


def probe_conditions(client: "S3Client", bucket: str, key: str) -> Conditions:
    """Tries each condition on an object under this key, which is removed again. Raises StorageError."""

    def put(body: bytes, **condition: Any) -> None:
        client.put_object(Bucket=bucket, Key=key, Body=body, **condition)

    def get(etag: str) -> None:
        client.get_object(Bucket=bucket, Key=key, IfMatch=etag)["Body"].close()

    with _probing(client, bucket, key):
        put(b"1")
        return Conditions(
            replacing=_is_refused(lambda: put(b"2", IfNoneMatch="*")),
            replacing_another=_is_refused(lambda: put(b"3", IfMatch=NO_ETAG)),
            reading_another=_is_refused(lambda: get(NO_ETAG)),
        )


def refuses_replacing(client: "S3Client", bucket: str, key: str) -> bool:
    """Whether of two creations of one object the second is refused. Raises StorageError."""

    def create() -> None:
        client.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")

    with _probing(client, bucket, key):
        return _is_refused(create) or _is_refused(create)


@contextmanager
def _probing(client: "S3Client", bucket: str, key: str) -> Iterator[None]:
    """Translates errors, and removes the object afterwards."""
    try:
        with storage_errors(f"s3://{bucket}/{key}"):
            yield
    finally:
        with suppress(ClientError, BotoCoreError, StorageError):
            client.delete_object(Bucket=bucket, Key=key)


def _is_refused(call: Callable[[], object]) -> bool:
    """Whether the server refused a request by its condition. False: it carried it out, or does not know the
    condition.
    """
    try:
        call()
    except ClientError as error:
        if status_of(error) == PRECONDITION_FAILED:
            return True
        if code_of(error) in UNKNOWN_TO_SERVER:
            return False
        raise
    return False
