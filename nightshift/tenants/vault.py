"""Encrypts secrets that must be read again (webhook secrets) with Fernet: AES-128-CBC with HMAC-SHA256.

The key is NIGHTSHIFT_SECRET_KEY, or a file of mode 0600 in the data directory.
"""

import base64
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from nightshift.errors import ConfigurationError

KEY_FILE = "secret_key"


class Vault:
    def __init__(self, secret_key: str) -> None:
        """`secret_key`: any text with enough entropy; it is hashed to the key size."""
        key = base64.urlsafe_b64encode(hashlib.sha256(secret_key.encode()).digest())
        self._fernet = Fernet(key)

    def encrypt(self, text: str) -> bytes:
        return self._fernet.encrypt(text.encode())

    def decrypt(self, token: bytes) -> str:
        """Raises ConfigurationError when the token was encrypted with another key."""
        try:
            return self._fernet.decrypt(token).decode()
        except InvalidToken as error:
            raise ConfigurationError(
                "A stored secret was encrypted with another NIGHTSHIFT_SECRET_KEY: put the old key back.",
                param="SECRET_KEY",
            ) from error


def open_vault(secret_key: str, data_dir: Path) -> Vault:
    """The vault of the settings. All processes of one installation must share its key."""
    return Vault(secret_key or _key_in_file(data_dir / KEY_FILE))


def _key_in_file(path: Path) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make_key(path)
    key = path.read_text().strip()
    if not key:
        raise ConfigurationError(
            f"{path} is empty, and stored webhook secrets cannot be read without the key that was in it: "
            "restore it from a backup, or delete it for a new one.",
            param="SECRET_KEY",
        )
    return key


def _make_key(path: Path) -> None:
    # Linked into place: processes that start together all read the key of the first one.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first
            os.link(fresh, path)
    finally:
        fresh.unlink()
