"""Objects as files in a directory, with their keys as paths.

A file gets its name once its bytes are on the disk; a crash leaves at most a temporary file that no listing
shows. A key never leads outside the allowed directories, also not through symbolic links.
"""

import errno
import heapq
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from nightshift.errors import (
    LocationNotAllowed,
    ObjectExists,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore.fences import check_fence
from nightshift.objectstore.objects import (
    READ_BYTES_MAX,
    STREAM_CHUNK_BYTES,
    TEMPORARY_PREFIX,
    Measured,
    ObjectChanged,
    ObjectInfo,
    checked_key,
    checked_prefix,
    has_bytes,
    pieces_of,
    read_within,
)
from nightshift.objectstore.time_limits import check_time, within

NAMES_MAX: Final = 50_000  # of one directory, held at a time by a listing: some 15 MiB
_OPEN_TRIES_MAX: Final = 5
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP})


class DirectoryStore:
    """An `ObjectStore` in a local or mounted directory."""

    supports_conditional_put = True  # link(2) refuses an existing name

    def __init__(
        self, root: Path, within: tuple[Path, ...] | None = None, without: tuple[Path, ...] = ()
    ) -> None:
        """`within`: the directories a key may lead to, by default the root. They need not exist yet.

        `without`: those it may not; of several that hold a path, the innermost decides.
        """
        self._root = root.absolute()
        self._within = tuple(path.resolve() for path in (within if within is not None else (self._root,)))
        self._without = tuple(path.resolve() for path in without)

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            with _reading(key):
                return _described(key, path) if path.is_file() else None
        except ObjectNotFound:
            return None  # deleted in between

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        info = self.head(key)
        if info is None:
            raise ObjectNotFound(f"no such object: {key}")
        return read_within(self, info, size_bytes_max)

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        path = self._path(key)
        with _reading(key), path.open("rb", buffering=0) as file:
            if if_match not in (None, _etag(os.fstat(file.fileno()))):
                raise ObjectChanged(f"{key} is not the object it was when it was first looked at")
            yield from _pieces_between(file, start, end, chunk_bytes)

    def put(
        self,
        key: str,
        data: bytes | Iterable[bytes],
        *,
        if_absent: bool = False,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> ObjectInfo:
        del content_type  # not stored
        path = self._path(key)
        measured = Measured(pieces_of(data))
        with _writing(key), within(deadline_s):
            is_ours = _write_whole(path, measured, if_absent)
            info = _described(key, path, sha256=measured.sha256)
        if not is_ours and not has_bytes(self, info, measured):
            raise ObjectExists(f"{key} exists already, with other bytes")
        return info

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        folder = checked_prefix(prefix).rpartition("/")[0]
        base = self._contained(self._root / folder)
        for key in self._keys_under(base, f"{folder}/" if folder else "", prefix, start_after or ""):
            info = self.head(key)
            if info is not None:  # else deleted in between
                yield info

    def delete(self, key: str) -> None:
        path = self._path(key)
        with suppress(ObjectNotFound), _reading(key):
            check_fence()
            path.unlink()
            _prune_empty(path.parent, self._root)

    def forget_unfinished(self, older_than: timedelta) -> int:
        latest_s = time.time() - older_than.total_seconds()  # files are dated by this machine's clock, too
        found = [
            path
            for folder, _, names in os.walk(self._root)
            for path in (Path(folder, name) for name in names if name.startswith(TEMPORARY_PREFIX))
            if _is_older(path, latest_s)
        ]
        for path in found:
            with _reading(path.name), suppress(FileNotFoundError):
                path.unlink()
        return len(found)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _keys_under(self, base: Path, base_key: str, prefix: str, start_after: str) -> Iterator[str]:
        """Keys of files under `base` that begin with `prefix` and follow `start_after`, in byte order.

        A directory sorts with its slash: `a-b` comes before `a/b`. Linked directories are not entered: a
        link to a parent would never end. Neither are directories that may not be used.
        """
        if not is_inside(base, self._within, self._without):
            return
        first = start_after.removeprefix(base_key) if start_after.startswith(base_key) else ""
        folder, slash, _ = first.partition("/")
        with suppress(ObjectNotFound):
            for name in _names_in(base, base_key, os.fsencode(folder + slash)):
                key = base_key + name
                if not (key.startswith(prefix) or prefix.startswith(key)):
                    continue
                is_after = os.fsencode(key) > os.fsencode(start_after)
                if not name.endswith("/"):
                    if is_after and key.startswith(prefix):
                        yield key
                elif is_after or start_after.startswith(key):
                    yield from self._keys_under(base / name, key, prefix, start_after)

    def _path(self, key: str) -> Path:
        return self._contained(self._root / checked_key(key))

    def _contained(self, path: Path) -> Path:
        """The path with links followed. Raises `LocationNotAllowed` if it leaves the allowed directories."""
        target = resolved(path)
        if not is_inside(target, self._within, self._without):
            raise LocationNotAllowed(f"{path} lies outside the directories this store may use", param="key")
        return target


def is_inside(path: Path, within: Iterable[Path], without: Iterable[Path]) -> bool:
    """Whether the innermost directory that holds the path, of both kinds, is one of `within`."""

    def depth(directories: Iterable[Path]) -> int:
        return max((len(each.parts) for each in directories if path.is_relative_to(each)), default=0)

    return depth(within) > depth(without)


def resolved(path: Path) -> Path:
    """The path with links followed. Raises `LocationNotAllowed` for a circle of links."""
    try:
        return path.resolve()
    except RuntimeError as error:
        raise LocationNotAllowed(f"{path}: its symbolic links lead in a circle") from error


def _described(key: str, path: Path, sha256: str | None = None) -> ObjectInfo:
    status = path.stat()
    return ObjectInfo(
        key=key,
        size_bytes=status.st_size,
        etag=_etag(status),
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
        sha256=sha256,
    )


def _is_older(path: Path, latest_s: float) -> bool:
    try:
        return path.stat().st_mtime <= latest_s
    except OSError:
        return False  # finished in between


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _pieces_between(file: BinaryIO, start: int, end: int | None, chunk_bytes: int) -> Iterator[bytes]:
    """The bytes [start, end). A file that shrinks during the read is an error."""
    size_bytes = os.fstat(file.fileno()).st_size
    end = size_bytes if end is None else min(end, size_bytes)
    file.seek(start)
    while start < end:
        piece = file.read(min(chunk_bytes, end - start))
        if not piece:
            raise StorageUnavailable(f"{file.name} became shorter while it was read")
        start += len(piece)
        yield piece


def _write_whole(path: Path, pieces: Iterable[bytes], if_absent: bool) -> bool:
    """Write a file whole or not at all. False if it had to be new and the name was taken."""
    with _temporary_beside(path) as file:
        for piece in pieces:
            check_time()
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        check_fence()
        is_ours = _publish(Path(file.name), path, if_absent)
    _sync_directory(path.parent)
    return is_ours


@contextmanager
def _temporary_beside(path: Path) -> Iterator[BinaryIO]:
    """A new file on the same file system, deleted afterwards unless renamed."""
    file = _opened_beside(path)
    try:
        with file:
            yield file
    finally:
        Path(file.name).unlink(missing_ok=True)


def _opened_beside(path: Path) -> BinaryIO:
    temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    for _ in range(_OPEN_TRIES_MAX):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a delete pruned the new directory
            return temporary.open("xb")
    raise StorageUnavailable(f"{path.parent} disappears as often as it is made")


def _publish(temporary: Path, path: Path, if_absent: bool) -> bool:
    """Give the finished file its name. False if it had to be new and the name was taken."""
    if not if_absent:
        temporary.replace(path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune_empty(directory: Path, root: Path) -> None:
    """Remove directories emptied by a delete."""
    while directory != root and directory.is_relative_to(root):
        try:
            directory.rmdir()
        except OSError:
            return  # not empty, or another's: it stays
        directory = directory.parent


def _names_in(directory: Path, key: str, first: bytes) -> Iterator[str]:
    """Names of files, and of directories with a slash, in byte order from `first` on.

    At most `NAMES_MAX` are held: a larger directory is read again for each further part.
    """
    while True:
        with _reading(key), os.scandir(directory) as entries:
            named = (_entry_name(entry) for entry in entries if not entry.name.startswith(TEMPORARY_PREFIX))
            later = (name for name in named if name is not None and os.fsencode(name) >= first)
            part = heapq.nsmallest(NAMES_MAX, later, key=os.fsencode)
        yield from part
        if len(part) < NAMES_MAX:
            return
        first = os.fsencode(part[-1]) + b"\0"


def _entry_name(entry: os.DirEntry[str]) -> str | None:
    """A file's name, or a directory's with a slash; None for anything else."""
    if entry.is_dir(follow_symlinks=False):
        return f"{entry.name}/"
    try:
        return entry.name if entry.is_file() else None
    except OSError:
        return None  # a circle of links


@contextmanager
def _reading(key: str) -> Iterator[None]:
    """Translate the operating system's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise ObjectNotFound(f"no such object: {key}") from error
        raise _translated(key, error) from error


@contextmanager
def _writing(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise StorageError(f"{key} cannot be stored in a directory: {error.strerror}") from error
        raise _translated(key, error) from error


def _translated(key: str, error: OSError) -> StorageError:
    kind = StorageDenied if error.errno in _DENIED else StorageUnavailable
    return kind(f"{key}: {error.strerror or error}")
