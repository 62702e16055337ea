"""The exceptions of the service. A subclass's docstring is its default message, advice included.

NightshiftError
├── InvalidRequest                 the caller can correct it; `param` names the field
│   ├── UnknownModel
│   ├── LocationNotAllowed
│   ├── RequestTooLarge
│   └── RequestTimedOut
├── NotFound                       also another tenant's object
├── Conflict                       well-formed, but not in this state
│   ├── IdempotencyKeyReused
│   └── OutputInUse
├── NotAuthenticated
├── PermissionDenied               the key is valid, and may not do this
│   ├── MissingScope
│   └── TenantDisabled
├── TooManyRequests
│   └── QuotaExceeded              the tenant's own; delete something, or wait for jobs to end
├── StorageError
│   ├── ObjectNotFound
│   ├── ObjectExists
│   ├── StorageDenied              no retry helps
│   │   └── CredentialsRefused     for every request
│   └── StorageUnavailable         a retry may
├── QueueUnavailable               nothing is lost
├── DatabaseUnavailable
│   ├── Conflicted                 nothing was changed; retry
│   └── SchemaBehind               until the migrations have run
└── ConfigurationError             the operator can correct it
    ├── InvalidSetting             a NIGHTSHIFT_… variable is invalid
    └── DatabaseUnusable           no retry helps
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

MESSAGE_BYTES_MAX: Final = 640  # so that a line with an error stays under 2 KB
PARAM_BYTES_MAX: Final = 128

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class NightshiftError(Exception):
    """Something went wrong."""

    def __init__(
        self, message: str | None = None, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.message = shortened(message or _in_a_line(type(self).__doc__ or ""), MESSAGE_BYTES_MAX)
        self.param = param and shortened(param, PARAM_BYTES_MAX)
        self.code = code or self.default_code
        super().__init__(self.message)

    default_code: str | None = None


def _in_a_line(docstring: str) -> str:
    return " ".join(docstring.split())


def shortened(text: str, bytes_max: int) -> str:
    """A text that may quote a caller's, at most so long as UTF-8: what is too long ends in "…".

    Control characters are replaced: they take six times their length in JSON.
    """
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    raw = text.encode(errors="surrogatepass")
    if len(raw) <= bytes_max:
        return text
    return raw[: bytes_max - len("…".encode())].decode(errors="ignore") + "…"


class InvalidRequest(NightshiftError):
    """The request cannot be accepted as it is."""

    default_code = "invalid_value"

    def about(self, param: str) -> "InvalidRequest":
        """The same error, naming the field that the caller sent."""
        return type(self)(f"Invalid '{param}': {self.message}", param=param, code=self.code)


@contextmanager
def about(param: str) -> Iterator[None]:
    """Has an InvalidRequest name the field that the caller sent."""
    try:
        yield
    except InvalidRequest as error:
        raise error.about(param) from error


class UnknownModel(InvalidRequest):
    """No worker serves this model. GET /v1/models lists the ones that are served."""

    default_code = "model_not_found"

    @classmethod
    def called(cls, name: str, served: Sequence[str] | None = None) -> "UnknownModel":
        """The error in OpenAI's sentence, which clients look for; `served`: the models that there are
        instead.
        """
        listed = "" if served is None else f" Models that are served: {', '.join(served) or 'none'}."
        return cls(
            f"The model `{name}` does not exist or you do not have access to it.{listed}", param="model"
        )


class LocationNotAllowed(InvalidRequest):
    """Jobs of this tenant may not name this location. The operator gives tenants their places in
    NIGHTSHIFT_S3_BUCKETS and NIGHTSHIFT_FILE_ROOTS."""

    default_code = "location_not_allowed"


class RequestTooLarge(InvalidRequest):
    """The request body is larger than this service accepts."""

    default_code = "request_too_large"


class RequestTimedOut(InvalidRequest):
    """The request body took too long to arrive."""

    default_code = "request_timeout"


class NotFound(NightshiftError):
    """No such object."""

    default_code = "not_found"


class Conflict(NightshiftError):
    """The object is not in a state that allows this."""


class IdempotencyKeyReused(Conflict):
    """This Idempotency-Key was used before with another payload. Use a new key for a new request."""

    default_code = "idempotency_key_reused"


class OutputInUse(Conflict):
    """Another job writes to this output. Wait for its end, cancel it, or name another folder."""

    default_code = "output_in_use"


class NotAuthenticated(NightshiftError):
    """Incorrect API key provided. Create one with `nightshift keys create`."""

    default_code = "invalid_api_key"


class PermissionDenied(NightshiftError):
    """This API key may not do this."""

    default_code = "permission_denied"


class MissingScope(PermissionDenied):
    """This API key lacks the scope that this needs. An administrator can make one that has it."""

    default_code = "missing_scope"


class TenantDisabled(PermissionDenied):
    """This tenant is disabled. An administrator of the service can enable it."""

    default_code = "tenant_disabled"


class TooManyRequests(NightshiftError):
    """The service has accepted as much as it can hold. Try again after the time given in Retry-After."""

    default_code = "rate_limit_exceeded"

    def __init__(
        self, message: str | None = None, *, retry_after_s: float = 5, retry_helps: bool = True
    ) -> None:
        """`retry_helps`: False if only another request, or a change of what is there, is accepted."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.retry_helps = retry_helps


class QuotaExceeded(TooManyRequests):
    """The tenant has as much as its quota allows."""

    default_code = "insufficient_quota"


class StorageError(NightshiftError):
    """The object store did not do what was asked."""

    default_code = "storage_error"


class ObjectNotFound(StorageError):
    """No such object in the object store."""

    default_code = "object_not_found"


class ObjectExists(StorageError):
    """The object exists already, and was to be created only if it did not."""

    default_code = "object_exists"


class StorageDenied(StorageError):
    """The object store refused: check the credentials, the bucket's name and its policy."""

    default_code = "storage_denied"


class CredentialsRefused(StorageDenied):
    """The object store does not accept the service's credentials: they are wrong, or have expired."""


class StorageUnavailable(StorageError):
    """The object store cannot be reached or is failing. It is worth trying again."""

    default_code = "storage_unavailable"


class QueueUnavailable(NightshiftError):
    """Redis cannot be reached. Accepted work is safe in the database and is rung again later."""

    default_code = "queue_unavailable"


class DatabaseUnavailable(NightshiftError):
    """The database cannot be reached."""

    default_code = "database_unavailable"


class Conflicted(DatabaseUnavailable):
    """The database gave way to another transaction. Nothing was changed; try again."""


class SchemaBehind(DatabaseUnavailable):
    """The database does not have this version's schema yet. Run the migrations:
    `python -m nightshift.store.databases.migrate`, or `nightshift up`, which does the same."""

    default_code = "schema_behind"


class ConfigurationError(NightshiftError):
    """The installation is not configured as it must be."""

    default_code = "configuration_error"


class DatabaseUnusable(ConfigurationError):
    """The database lacks something that the service needs, or refuses it. Only its operator can mend that."""

    default_code = "database_unusable"


class InvalidSetting(ConfigurationError):
    """A setting NIGHTSHIFT_… has a value that makes no sense."""
