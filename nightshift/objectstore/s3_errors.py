"""Translates S3's errors, and says what answers have in common."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

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


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Translate S3's errors; `name` begins the message."""
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
        return StorageUnavailable(said)  # the upload was removed; writing it again helps
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
    """When the server answered, by its clock."""
    header = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(header).astimezone(UTC) if header else datetime.now(UTC)
