"""API keys and their verification.

    ns_live_k3v9x1qz_<32 characters><6 characters>
             │        │               └ checksum: tells a mistyped key from an unknown one, offline
             │        └ the secret; only the SHA-256 of the whole key is stored
             └ the public id, shown in listings

The secret has 190 random bits, so a fast hash is safe. A key may do what its scopes name, for its tenant.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.errors import InvalidRequest

PREFIX: Final = "ns_live_"
ID_LENGTH: Final = 8
SECRET_LENGTH: Final = 32
CHECKSUM_LENGTH: Final = 6
DEFAULT_TENANT: Final = "default"
API_KEY_FILE: Final = "api_key"  # in DATA_DIR; the CLI reads it

_TENANT: Final = re.compile(r"[a-z0-9-]{1,32}")
_BASE62: Final = string.digits + string.ascii_letters


class Scope(StrEnum):
    """A use of a key. None contains another."""

    SUBMIT = "submit"  # upload and delete files, ask models, submit and cancel jobs
    READ = "read"  # list, describe, download and follow what the tenant has
    ADMIN = "admin"  # tenants and their keys, of the whole service


DEFAULT_SCOPES: Final = frozenset({Scope.SUBMIT, Scope.READ})


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    id: str
    tenant_id: str
    name: str
    key_sha256: str
    last4: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    replaced_by: str | None = None  # the id of the key that it was rotated to

    @classmethod
    def from_key(
        cls,
        key: str,
        *,
        tenant_id: str,
        name: str,
        created_at: datetime,
        expires_at: datetime | None = None,
        scopes: Collection[Scope] = DEFAULT_SCOPES,
    ) -> "ApiKey":
        """Raises InvalidRequest for a tenant whose name cannot be part of a path."""
        check_tenant_name(tenant_id, param="tenant")
        public_id = key_id(key)
        assert public_id is not None, "only keys made by new_key are stored"
        return cls(
            id=public_id,
            tenant_id=tenant_id,
            name=name,
            key_sha256=digest(key),
            last4=key[-4:],
            created_at=created_at,
            expires_at=expires_at,
            scopes=frozenset(scopes),
        )

    def admits(self, key: str, now: datetime) -> bool:
        """Whether this is the key and it is valid. Takes the same time for every wrong key."""
        matches = hmac.compare_digest(self.key_sha256, digest(key))
        return matches and self.is_valid(now)

    def is_valid(self, now: datetime) -> bool:
        """Whether it has neither expired nor been revoked."""
        expired = self.expires_at is not None and self.expires_at <= now
        return not expired and self.revoked_at is None


def check_tenant_name(text: str, *, param: str) -> None:
    """Raises InvalidRequest, about this field, for a name that cannot be part of a path."""
    if not is_tenant_name(text):
        raise InvalidRequest(
            f"{text!r} is no name for a tenant: use 1 to 32 of a-z, 0-9 and '-'.", param=param
        )


def is_tenant_name(text: str) -> bool:
    """Whether a tenant may be called so. Keys of earlier releases may be for others."""
    return _TENANT.fullmatch(text) is not None


def new_key() -> str:
    """A new key, shown once and never stored."""
    public = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(ID_LENGTH))
    secret = "".join(secrets.choice(_BASE62) for _ in range(SECRET_LENGTH))
    body = f"{PREFIX}{public}_{secret}"
    return body + _checksum(body)


def key_id(key: str) -> str | None:
    """The public id in a well-formed key; None for a mistyped or foreign one."""
    body, checksum = key[:-CHECKSUM_LENGTH], key[-CHECKSUM_LENGTH:]
    expected_length = len(PREFIX) + ID_LENGTH + 1 + SECRET_LENGTH
    if len(body) != expected_length or not body.startswith(PREFIX) or not key.isascii():
        return None
    return body[len(PREFIX) :][:ID_LENGTH] if hmac.compare_digest(checksum, _checksum(body)) else None


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = ""
    for _ in range(CHECKSUM_LENGTH):  # 62**6 > 2**32
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits
