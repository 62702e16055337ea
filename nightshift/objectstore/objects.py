"""The interface of object stores, and what all of them promise.

Objects are immutable by convention: a key names what made the bytes, so writing a key twice writes the same
bytes. This file knows no file system and no S3.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from nightshift.errors import LocationNotAllowed, StorageError

MIB: Final = 1024 * 1024

STREAM_CHUNK_BYTES: Final = 1 * MIB  # one piece of a stream: what a reader holds at a time
READ_BYTES_MAX: Final = 64 * MIB  # `read` returns one bytes object; anything larger is to be streamed
DAMAGED_TRIES_MAX: Final = 4  # an object may arrive with other bytes than were written, before it is given up
KEY_BYTES_MAX: Final = 1024  # S3's own limit

TEMPORARY_PREFIX: Final = ".nightshift-tmp-"  # names of unfinished files in a directory; never a key


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object as the store describes it."""

    key: str
    size_bytes: int
    etag: str  # changes when the bytes do; not comparable between stores
    modified_at: datetime  # aware, by the store's clock
    sha256: str | None = None  # hex; known after a put, None otherwise


class ObjectTooLarge(StorageError):
    """The object is larger than the reader is prepared to hold, or the store to accept."""

    default_code = "object_too_large"


class ObjectChanged(StorageError):
    """The object is not the one it was: another was written under its key since."""

    default_code = "object_changed"


class ObjectDamaged(StorageError):
    """The object's bytes are not those that were written, and reading it once more did not help."""

    default_code = "object_damaged"


class ObjectStore(Protocol):
    """Objects under one root. Keys are relative and cannot leave it; every method refuses one that would.

    Safe to share between threads. Every method may raise `StorageUnavailable` (try again later),
    `StorageDenied` (do not) and `LocationNotAllowed` (the key leaves the root).
    """

    @property
    def url(self) -> str:
        """The root, as it was given to `open_store`."""

    @property
    def supports_conditional_put(self) -> bool:
        """True if the server itself refuses to replace an object; found out by trying, once.

        Where it is False, `put(if_absent=True)` looks before it writes: two writers at the same instant may
        both win. Callers that need one winner use unique keys and let the database choose.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object; None if there is none."""

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        """All bytes of an object. Raises `ObjectNotFound`, `ObjectTooLarge`."""

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        """The bytes [start, end) in pieces of at most `chunk_bytes`; an end beyond the object's is the
        object's. With `if_match`, an etag, of that object only: raises `ObjectChanged` for any other.

        A connection cut short is taken up again where it broke, and raises `StorageUnavailable` if that
        does not help; it never looks like a short object. Raises `ObjectNotFound` when first advanced.
        """

    def put(
        self,
        key: str,
        data: bytes | Iterable[bytes],
        *,
        if_absent: bool = False,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> ObjectInfo:
        """Store an object, whole or not at all, and say its size and sha256. Iterables are not held in
        memory.

        Raises `StorageUnavailable` when it takes longer than `deadline_s`, retries included; without one, a
        transfer may take as long as it makes progress.

        With `if_absent`, raises `ObjectExists` if other bytes lie under the key. The same bytes count as
        written: a retry whose first answer was lost must not fail. (So it is no lock.)
        """

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in byte order of their keys, fetched page by page."""

    def delete(self, key: str) -> None:
        """Remove an object. None there is no error."""

    def forget_unfinished(self, older_than: timedelta) -> int:
        """Remove what writers that died have left of objects they had not finished. Returns how many.

        Objects begun later than `older_than` ago, by the store's clock, may still be under way and stay.
        """

    def close(self) -> None:
        """Close the connections."""


def checked_key(key: str) -> str:
    """The key itself, if it names an object under any root. Raises `LocationNotAllowed` otherwise."""
    segments = key.split("/")
    if not key or "" in segments or "." in segments or ".." in segments:
        raise LocationNotAllowed(
            f"{key!r} is no object key: it must be relative, without empty, '.' or '..' parts", param="key"
        )
    _check_characters(key)
    return key


def checked_prefix(prefix: str) -> str:
    """The prefix itself, if it stays under any root. Unlike a key it may be empty or end anywhere."""
    if prefix.startswith("/") or {".", ".."} & set(prefix.split("/")[:-1]) or prefix.endswith("/.."):
        raise LocationNotAllowed(
            f"{prefix!r} is no prefix: it must be relative, without '.' or '..' parts", param="prefix"
        )
    _check_characters(prefix)
    return prefix


def _check_characters(key: str) -> None:
    """Refuse what some store could not spell, or would take for something else."""
    if "\x00" in key:
        raise LocationNotAllowed(f"{key!r} contains a NUL character", param="key")
    if any(segment.startswith(TEMPORARY_PREFIX) for segment in key.split("/")):
        raise LocationNotAllowed(
            f"{key!r}: names beginning with {TEMPORARY_PREFIX!r} are reserved", param="key"
        )
    try:
        size_bytes = len(key.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise LocationNotAllowed(f"{key!r} cannot be written as UTF-8", param="key") from error
    if size_bytes > KEY_BYTES_MAX:
        raise LocationNotAllowed(
            f"a key of {size_bytes} bytes exceeds the {KEY_BYTES_MAX} allowed", param="key"
        )


class Measured:
    """Bytes passing by: their number and their sha256."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.size_bytes = 0
        self._pieces = pieces
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what has passed so far, hex."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._sha256.update(piece)
            self.size_bytes += len(piece)
            yield piece


def pieces_of(data: bytes | Iterable[bytes], piece_bytes: int = STREAM_CHUNK_BYTES) -> Iterator[bytes]:
    """Any body as pieces of at most `piece_bytes`."""
    whole = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    for piece in whole:
        view = memoryview(piece)
        for begin in range(0, len(view), piece_bytes):
            yield bytes(view[begin : begin + piece_bytes])


def read_within(store: ObjectStore, info: ObjectInfo, size_bytes_max: int) -> bytes:
    """All bytes of an object that has just been described, if it is small enough to hold."""
    if info.size_bytes > size_bytes_max:
        raise ObjectTooLarge(
            f"{info.key} has {info.size_bytes} bytes, more than the {size_bytes_max} allowed here"
        )
    return b"".join(store.stream(info.key, 0, info.size_bytes))


def read_verified(store: ObjectStore, key: str, sha256: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
    """All bytes of an object whose sha256 (hex) is known. Read again if they are not those.

    Raises `ObjectDamaged` if that does not help, and what `read` raises.
    """
    for _ in range(DAMAGED_TRIES_MAX):
        data = store.read(key, size_bytes_max)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    raise ObjectDamaged(f"{key} does not have the bytes that were written, read {DAMAGED_TRIES_MAX} times")


def has_bytes(store: ObjectStore, info: ObjectInfo, measured: Measured) -> bool:
    """Whether the object described holds exactly the bytes that were measured."""
    if info.size_bytes != measured.size_bytes:
        return False
    stored = Measured(store.stream(info.key))
    for _ in stored:
        continue
    return stored.sha256 == measured.sha256
