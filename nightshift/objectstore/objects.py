"""The interface of object stores.

Objects are immutable by convention: a key names what made the bytes, so a second write has the same bytes.
"""

import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import IO, Any, Final, Protocol

from nightshift.errors import LocationNotAllowed, ObjectNotFound, StorageError

MIB: Final = 1024 * 1024

STREAM_CHUNK_BYTES: Final = 1 * MIB  # per piece of a stream
COPY_CHUNK_BYTES: Final = 256 * 1024  # likewise, where several objects are copied at once
READ_BYTES_MAX: Final = 64 * MIB  # of one `read`; larger objects are streamed
DAMAGED_TRIES_MAX: Final = 4  # reads of an object that arrives with wrong bytes
KEY_BYTES_MAX: Final = 1024  # S3's own limit

TEMPORARY_PREFIX: Final = ".nightshift-tmp-"  # never a key


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    key: str
    size_bytes: int
    etag: str  # changes with the bytes; not comparable between stores
    modified_at: datetime  # aware, by the store's clock
    sha256: str | None = None  # hex; known after a put
    unreadable: str | None = None  # why it cannot be read, where a listing knows that


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """The bytes of an object that has not appeared yet. Any process that has this may publish it."""

    upload_id: str
    size_bytes: int
    sha256: str  # hex
    part_etags: tuple[str, ...] = ()  # S3's, in order

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"part_etags": list(self.part_etags)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Staged":
        return cls(**{**data, "part_etags": tuple(data["part_etags"])})


@dataclass(frozen=True, slots=True)
class StagedUpload:
    """An upload that was begun and neither published nor discarded."""

    key: str
    upload_id: str
    begun_at: datetime | None = field(default=None, compare=False)
    """A time by the store's clock; in a directory, when it was last written."""


class ObjectTooLarge(StorageError):
    """The object is larger than the reader is prepared to hold, or the store to accept."""

    default_code = "object_too_large"


class ObjectChanged(StorageError):
    """The object is not the one it was: another was written under its key since."""

    default_code = "object_changed"


class ObjectDamaged(StorageError):
    """The object's bytes are not those that were written, and reading it once more did not help."""

    default_code = "object_damaged"


class ObjectReader(Protocol):
    """Objects under one root. Every method refuses a key that leaves it.

    Thread-safe. Every method may raise `StorageUnavailable` (a retry may help), `StorageDenied` (it does not)
    and `LocationNotAllowed` (the key leaves the root).
    """

    def head(self, key: str) -> ObjectInfo | None:
        """The object's description, or None."""

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        """An object's bytes. Raises `ObjectNotFound`, `ObjectTooLarge`."""

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        """The bytes [start, end), or to the object's end, in pieces of at most `chunk_bytes`.

        With `if_match`, an etag, raises `ObjectChanged` for any other object. A broken connection is resumed,
        or raises `StorageUnavailable`; it never looks like a short object. Raises `ObjectNotFound` when first
        advanced.
        """

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in byte order of their keys, fetched page by page."""


class ObjectStore(ObjectReader, Protocol):
    """The same objects, to be written and removed as well."""

    @property
    def url(self) -> str:
        """The URL as given to `open_store`."""

    @property
    def supports_conditional_put(self) -> bool:
        """Whether the server itself refuses to replace an object; probed once. Where not, of two writers with
        `if_absent` at once both may succeed.
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
        """Stores an object whole or not at all, and returns its size and sha256. Iterables are streamed.

        Raises `StorageUnavailable` past `deadline_s`, retries included. With `if_absent`, raises
        `ObjectExists` if the key has other bytes; the same bytes count as written, so this is no lock.
        """

    def delete(self, key: str) -> None:
        """Removes an object, if there is one."""

    def stage(self, key: str, *, content_type: str | None = None) -> str:
        """Begins an object in steps: `stage`, `write_staged`, `publish`. Returns the upload's id.

        Nothing appears before `publish`. Each step may be another process's.
        """

    def write_staged(
        self, key: str, upload_id: str, pieces: Iterable[bytes], *, deadline_s: float | None = None
    ) -> Staged:
        """Sends all bytes of a staged object, streamed, once: after an error, discard it and stage it anew.

        Raises `ObjectNotFound` if it was discarded, and `StorageUnavailable` past `deadline_s`.
        """

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        """Lets a staged object appear whole, in the place of what is there.

        A second call finds the object with these bytes and changes nothing. Raises `ObjectNotFound`, and
        changes nothing, if it was discarded and another object or none is there.
        """

    def discard(self, key: str, upload_id: str) -> None:
        """Forgets a staged object, if there is one: once this has returned, no process can publish it.

        One that was published stays.
        """

    def staged(self, prefix: str = "", older_than: timedelta | None = None) -> Iterator[StagedUpload]:
        """Lists what was staged under a prefix and neither published nor discarded, in no order.

        With `older_than`, what was begun (in a directory: last written) that long ago by the store's clock. A
        server that cannot list uploads shows none.
        """

    def forget_unfinished(self, older_than: timedelta, kept: Container[str] = ()) -> int:
        """Removes unfinished objects begun more than `older_than` ago by the store's clock, except those
        whose ids are `kept`, and a directory's empty folders. Returns how many objects.
        """

    def close(self) -> None:
        """Closes the connections."""


def checked_key(key: str) -> str:
    """The key, if it stays under any root, although some servers keep objects as files. Raises
    `LocationNotAllowed` otherwise.
    """
    segments = key.split("/")
    if not key or "." in segments or ".." in segments:
        raise LocationNotAllowed(
            f"{key!r} is no object key: it must be without '.' or '..' parts", param="key"
        )
    _check_characters(key)
    return key


def checked_path(key: str) -> str:
    """The key, if it is the path of a file as well. Raises `LocationNotAllowed`."""
    if "" in key.split("/"):
        raise LocationNotAllowed(f"{key!r} is no path: it must be relative, without empty parts", param="key")
    return checked_key(key)


def checked_prefix(prefix: str) -> str:
    """The prefix, if it stays under any root. It may be empty or end anywhere."""
    if {".", ".."} & set(prefix.split("/")[:-1]) or prefix.endswith("/.."):
        raise LocationNotAllowed(
            f"{prefix!r} is no prefix: it must be without '.' or '..' parts", param="prefix"
        )
    _check_characters(prefix)
    return prefix


def checked_path_prefix(prefix: str) -> str:
    """The prefix, if it is that of files' paths as well. Raises `LocationNotAllowed`."""
    if prefix.startswith("/"):
        raise LocationNotAllowed(f"{prefix!r} is no prefix of paths: it must be relative", param="prefix")
    return checked_prefix(prefix)


def _check_characters(key: str) -> None:
    """Refuses characters that some store cannot represent or treats as special."""
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
    """Counts and hashes the bytes that pass through."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.size_bytes = 0
        self._pieces = pieces
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._sha256.update(piece)
            self.size_bytes += len(piece)
            yield piece


def pieces_of(data: bytes | Iterable[bytes], piece_bytes: int = STREAM_CHUNK_BYTES) -> Iterator[bytes]:
    """A body as pieces of at most `piece_bytes`."""
    whole = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    for piece in whole:
        view = memoryview(piece)
        for begin in range(0, len(view), piece_bytes):
            yield bytes(view[begin : begin + piece_bytes])


def read_whole(store: ObjectReader, key: str, name: str, size_bytes_max: int) -> bytes:
    """The bytes of an object, which `name` names in messages. Raises `ObjectNotFound`, `ObjectTooLarge`."""
    info = store.head(key)
    if info is None:
        raise ObjectNotFound(f"no such object: {name}")
    return read_within(store, key, info.size_bytes, size_bytes_max)


def read_within(store: ObjectReader, key: str, size_bytes: int, size_bytes_max: int) -> bytes:
    """The bytes of an object of this size. Raises `ObjectTooLarge` above the limit."""
    if size_bytes > size_bytes_max:
        raise ObjectTooLarge(f"{key} has {size_bytes} bytes, more than the {size_bytes_max} allowed here")
    return b"".join(store.stream(key, 0, size_bytes))


def read_verified(
    store: ObjectReader,
    key: str,
    sha256: str,
    size_bytes_max: int = READ_BYTES_MAX,
    *,
    size_bytes: int | None = None,
) -> bytes:
    """An object's bytes, read again while their sha256 (hex) differs.

    `size_bytes`: how many were written; where that is known, the store need not be asked first.
    Raises `ObjectDamaged` after `DAMAGED_TRIES_MAX` reads, and what `read` raises.
    """
    for _ in range(DAMAGED_TRIES_MAX):
        if size_bytes is None:
            data = store.read(key, size_bytes_max)
        else:
            data = read_within(store, key, size_bytes, size_bytes_max)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    raise ObjectDamaged(f"{key} does not have the bytes that were written, read {DAMAGED_TRIES_MAX} times")


def copy_verified(
    store: ObjectReader, key: str, sha256: str, size_bytes: int, file: IO[bytes], start: int
) -> None:
    """Writes an object of so many bytes into a file, from `start` on, again while their sha256 (hex) differs.

    Raises as `read_verified`, and OSError.
    """
    for _ in range(DAMAGED_TRIES_MAX):
        measured, place = Measured(store.stream(key, 0, size_bytes, COPY_CHUNK_BYTES)), start
        for piece in measured:
            view = memoryview(piece)
            while view:
                written = os.pwrite(file.fileno(), view, place)
                view, place = view[written:], place + written
        if measured.sha256 == sha256:
            return
    raise ObjectDamaged(f"{key} does not have the bytes that were written, read {DAMAGED_TRIES_MAX} times")


def has_bytes(store: ObjectReader, info: ObjectInfo, size_bytes: int, sha256: str) -> bool:
    """Whether the object has exactly these bytes, by reading it."""
    if info.size_bytes != size_bytes:
        return False
    stored = Measured(store.stream(info.key))
    for _ in stored:
        continue
    return stored.sha256 == sha256


def already_published(store: ObjectReader, key: str, staged: Staged) -> ObjectInfo:
    """The object under the key, if it has the staged bytes. Raises `ObjectNotFound`."""
    info = store.head(key)
    if info is None or not has_bytes(store, info, staged.size_bytes, staged.sha256):
        raise ObjectNotFound(f"what was staged as {key} has been discarded: stage it anew")
    return replace(info, sha256=staged.sha256)
