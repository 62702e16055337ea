"""Files of a directory store: written whole or not at all, described, and their errors translated.

A staged file is hidden beside its target, and renamed when it is published:

    out/.nightshift-tmp-<32 hex digits>.part-00001.jsonl     the upload's id is this name

One that was unlinked can neither be renamed nor be made again by a late writer, which only opens it.
"""

import errno
import heapq
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final

from nightshift.errors import ObjectNotFound, StorageDenied, StorageError, StorageUnavailable
from nightshift.objectstore.fences import check_fence
from nightshift.objectstore.objects import TEMPORARY_PREFIX, ObjectInfo, Staged
from nightshift.objectstore.time_limits import check_time

NAMES_MAX: Final = 50_000  # of one directory, held at a time by a listing: some 15 MiB
_OPEN_TRIES_MAX: Final = 5
_UPLOAD_ID: Final = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}\.(?P<target>[^/]+)", re.DOTALL)
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP})


def described(key: str, path: Path, sha256: str | None = None) -> ObjectInfo:
    status = path.stat()
    return ObjectInfo(
        key=key,
        size_bytes=status.st_size,
        etag=etag_of(status),
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
        sha256=sha256,
    )


def unreadable(key: str, path: Path, reason: str) -> ObjectInfo | None:
    """A name of a folder that is no file, or none that may be read. None: it is gone."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return ObjectInfo(
        key=key,
        size_bytes=status.st_size,
        etag=etag_of(status),
        modified_at=modified_at,
        unreadable=reason,
    )


def is_older(path: Path, latest_s: float) -> bool:
    try:
        return path.stat().st_mtime <= latest_s
    except OSError:
        return False  # finished in between


def etag_of(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def pieces_between(file: BinaryIO, start: int, end: int | None, chunk_bytes: int) -> Iterator[bytes]:
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


def write_whole(path: Path, pieces: Iterable[bytes], if_absent: bool, umask: int | None) -> bool:
    """Writes a file whole or not at all. False if it had to be new and the name was taken."""
    with _temporary_beside(path, umask) as file:
        for piece in pieces:
            check_time()
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        check_fence()
        is_ours = _publish(Path(file.name), path, if_absent)
    sync_directory(path.parent)
    return is_ours


@contextmanager
def _temporary_beside(path: Path, umask: int | None) -> Iterator[BinaryIO]:
    """A new file on the same file system, deleted afterwards unless renamed."""
    file = opened_beside(path, umask=umask)
    try:
        with file:
            yield file
    finally:
        Path(file.name).unlink(missing_ok=True)


def opened_beside(path: Path, suffix: str = "", umask: int | None = None) -> BinaryIO:
    """A new file that no listing shows. Its name ends with `suffix`. `umask`: None: the process's."""
    temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{suffix}"
    for _ in range(_OPEN_TRIES_MAX):
        with suppress(FileNotFoundError):  # a delete pruned the new directory
            make_directory(path.parent, umask)
            file = temporary.open("xb")
            _open_to_others(temporary, 0o666, umask)
            return file
    raise StorageUnavailable(f"{path.parent} disappears as often as it is made")


def begin_staged(path: Path, umask: int | None = None) -> str:
    """Makes an empty hidden file beside the target. Returns its name."""
    with opened_beside(path, suffix=f".{path.name}", umask=umask) as file:
        return Path(file.name).name


def target_of(name: str) -> str | None:
    """The name that a staged file gets when it is published; None of another kind of file."""
    staged_name = _UPLOAD_ID.fullmatch(name)
    return None if staged_name is None else staged_name["target"]


def write_staged(path: Path, upload_id: str, pieces: Iterable[bytes]) -> None:
    """Writes the hidden file to the disk. Raises ObjectNotFound if it was discarded, before or meanwhile."""
    hidden = _hidden(path, upload_id)
    try:
        file = hidden.open("r+b")
    except FileNotFoundError as error:
        raise _discarded(path) from error
    with file:
        file.truncate()
        for piece in pieces:
            check_time()
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        if os.fstat(file.fileno()).st_nlink == 0:
            raise _discarded(path)
    sync_directory(path.parent)


def publish_staged(path: Path, staged: Staged) -> bool:
    """Gives the hidden file its name. False: it is not there, or not the one that was staged."""
    hidden = _hidden(path, staged.upload_id)
    try:
        if hidden.stat().st_size != staged.size_bytes:
            return False
        check_fence()
        hidden.replace(path)
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


def discard_staged(path: Path, upload_id: str) -> None:
    with suppress(FileNotFoundError):
        _hidden(path, upload_id).unlink()


def _hidden(path: Path, upload_id: str) -> Path:
    """Raises ObjectNotFound for an id that is not of this target: it might name any file."""
    if target_of(upload_id) != path.name:
        raise ObjectNotFound(f"no upload {upload_id!r} of {path.name}")
    return path.parent / upload_id


def _discarded(path: Path) -> ObjectNotFound:
    return ObjectNotFound(f"what was staged as {path.name} has been discarded: stage it anew")


def make_directory(directory: Path, umask: int | None = None) -> None:
    """Makes a directory and those above it. `umask`: of new ones; None: the process's."""
    chain = (directory, *directory.parents)
    new = [] if umask is None else list(takewhile(lambda folder: not folder.exists(), chain))
    directory.mkdir(parents=True, exist_ok=True)
    for folder in new:
        _open_to_others(folder, 0o777, umask)


def _open_to_others(path: Path, mode: int, umask: int | None) -> None:
    """Undo the process's own umask. A mode that it has not closed comes from the directory's access list."""
    old_mode = stat.S_IMODE(path.stat().st_mode)
    if umask is not None and not old_mode & 0o077:
        path.chmod(old_mode | (mode & ~umask))


def _publish(temporary: Path, path: Path, if_absent: bool) -> bool:
    """Gives the finished file its name. False if it had to be new and the name was taken."""
    if not if_absent:
        temporary.replace(path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def sync_directory(directory: Path) -> None:
    """Makes the new name survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune_empty(directory: Path, root: Path) -> None:
    """Removes directories emptied by a delete."""
    while directory != root and directory.is_relative_to(root):
        try:
            directory.rmdir()
        except OSError:
            return  # not empty, or another's: it stays
        directory = directory.parent


def names_in(directory: Path, key: str, first: bytes, *, only_files: bool = True) -> Iterator[str]:
    """Names of files, and of directories with a slash, in byte order from `first` on. Without `only_files`,
    also the names of links to directories, with a slash, of sockets and the like.

    At most `NAMES_MAX` are held: a larger directory is read again for each further part.
    """
    while True:
        with reading(key), os.scandir(directory) as entries:
            named = (
                _entry_name(entry, only_files)
                for entry in entries
                if not entry.name.startswith(TEMPORARY_PREFIX)
            )
            later = (name for name in named if name is not None and os.fsencode(name) >= first)
            part = heapq.nsmallest(NAMES_MAX, later, key=os.fsencode)
        yield from part
        if len(part) < NAMES_MAX:
            return
        first = os.fsencode(part[-1]) + b"\0"


def _entry_name(entry: os.DirEntry[str], only_files: bool) -> str | None:
    """A file's name, or a directory's with a slash; None for anything else, if only files are wanted."""
    try:
        if entry.is_dir(follow_symlinks=not only_files):
            return f"{entry.name}/"
        return entry.name if entry.is_file() or not only_files else None
    except OSError:  # a circle of links
        return None if only_files else entry.name


@contextmanager
def reading(key: str) -> Iterator[None]:
    """Translates the operating system's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise ObjectNotFound(f"no such object: {key}") from error
        raise _translated(key, error) from error


@contextmanager
def writing(key: str) -> Iterator[None]:
    """Translates errors as `reading` does. A missing file was removed by another process: writing it again
    helps.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise StorageError(f"{key} cannot be stored in a directory: {error.strerror}") from error
        raise _translated(key, error) from error


def _translated(key: str, error: OSError) -> StorageError:
    kind = StorageDenied if error.errno in _DENIED else StorageUnavailable
    whose = " to the user that the service runs as" if error.errno in (errno.EACCES, errno.EPERM) else ""
    return kind(f"{key}: {error.strerror or error}{whose}")
