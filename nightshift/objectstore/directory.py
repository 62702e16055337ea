"""Objects as files in a directory, with their keys as paths.

A file gets its name once its bytes are on the disk; a crash leaves at most a temporary file that no listing
shows. A key never leads outside the allowed directories, also not through symbolic links.
"""

import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nightshift.errors import LocationNotAllowed, ObjectExists, ObjectNotFound, StorageDenied
from nightshift.objectstore.directory_files import (
    begin_staged,
    described,
    discard_staged,
    etag_of,
    is_older,
    names_in,
    pieces_between,
    prune_empty,
    publish_staged,
    reading,
    target_of,
    unreadable,
    write_staged,
    write_whole,
    writing,
)
from nightshift.objectstore.fences import check_fence
from nightshift.objectstore.objects import (
    READ_BYTES_MAX,
    STREAM_CHUNK_BYTES,
    TEMPORARY_PREFIX,
    Measured,
    ObjectChanged,
    ObjectInfo,
    Staged,
    StagedUpload,
    already_published,
    checked_path,
    checked_path_prefix,
    has_bytes,
    pieces_of,
    read_whole,
)
from nightshift.objectstore.time_limits import within


class DirectoryStore:
    """An `ObjectStore` in a local or mounted directory."""

    supports_conditional_put = True  # link(2) refuses an existing name

    def __init__(
        self,
        root: Path,
        within: tuple[Path, ...] | None = None,
        without: tuple[Path, ...] = (),
        *,
        umask: int | None = None,
        lists_unreadable: bool = False,
    ) -> None:
        """`within`: the directories a key may lead to, by default the root. They need not exist yet.

        `without`: those it may not; of several that hold a path, the innermost decides. `umask`: of the files
        and directories that it makes; None: the process's. `lists_unreadable`: listings show what cannot be
        read as well, with the reason.
        """
        self._root = root.absolute()
        self._umask = umask
        self._within = tuple(path.resolve() for path in (within if within is not None else (self._root,)))
        self._without = tuple(path.resolve() for path in without)
        self._lists_unreadable = lists_unreadable

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            with reading(self._named(key)):
                return described(key, path) if path.is_file() else None
        except ObjectNotFound:
            return None  # deleted in between

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        return read_whole(self, key, self._named(key), size_bytes_max)

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
        with reading(self._named(key)), path.open("rb", buffering=0) as file:
            if if_match not in (None, etag_of(os.fstat(file.fileno()))):
                raise ObjectChanged(f"{self._named(key)} is not what it was when it was first looked at")
            yield from pieces_between(file, start, end, chunk_bytes)

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
        with writing(self._named(key)), within(deadline_s):
            is_ours = write_whole(path, measured, if_absent, self._umask)
            info = described(key, path, sha256=measured.sha256)
        if not is_ours and not has_bytes(self, info, measured.size_bytes, measured.sha256):
            raise ObjectExists(f"{self._named(key)} exists already, with other bytes")
        return info

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        folder = checked_path_prefix(prefix).rpartition("/")[0]
        base = self._contained(self._root / folder)
        for key in self._keys_under(base, f"{folder}/" if folder else "", prefix, start_after or ""):
            info = self._listed(key) if self._lists_unreadable else self.head(key)
            if info is not None:  # else deleted in between
                yield info

    def delete(self, key: str) -> None:
        path = self._path(key)
        with suppress(ObjectNotFound), reading(self._named(key)):
            check_fence()
            path.unlink()
            prune_empty(path.parent, self._root)

    def stage(self, key: str, *, content_type: str | None = None) -> str:
        del content_type  # not stored
        with writing(self._named(key)):
            return begin_staged(self._path(key), self._umask)

    def write_staged(
        self, key: str, upload_id: str, pieces: Iterable[bytes], *, deadline_s: float | None = None
    ) -> Staged:
        path = self._path(key)
        measured = Measured(pieces_of(pieces))
        with writing(self._named(key)), within(deadline_s):
            write_staged(path, upload_id, measured)
        return Staged(upload_id=upload_id, size_bytes=measured.size_bytes, sha256=measured.sha256)

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        path = self._path(key)
        with writing(self._named(key)):
            if publish_staged(path, staged):
                return described(key, path, sha256=staged.sha256)
        return already_published(self, key, staged)

    def discard(self, key: str, upload_id: str) -> None:
        path = self._path(key)
        with suppress(ObjectNotFound), reading(self._named(key)):
            check_fence()
            discard_staged(path, upload_id)  # the folder stays: it may be empty, and a user's

    def staged(self, prefix: str = "", older_than: timedelta | None = None) -> Iterator[StagedUpload]:
        folder = checked_path_prefix(prefix).rpartition("/")[0]
        base = self._contained(self._root / folder)
        for path in self._temporaries_in(base, older_than):
            name = target_of(path.name)
            parts = (folder, *path.parent.relative_to(base).parts, name)
            key = "/".join(filter(None, parts))
            if name is not None and key.startswith(prefix):
                with suppress(FileNotFoundError):
                    yield StagedUpload(key, path.name, datetime.fromtimestamp(path.stat().st_mtime, UTC))

    def forget_unfinished(self, older_than: timedelta, kept: Container[str] = ()) -> int:
        count, latest_s = 0, time.time() - older_than.total_seconds()
        for here, folders, names in self._walk(self._root):
            for name in self._old_temporaries(here, names, latest_s):
                if name not in kept:
                    count += 1
                    with reading(name), suppress(FileNotFoundError):
                        (here / name).unlink()
            if not folders and not names and is_older(here, latest_s):  # a writer that came to nothing
                prune_empty(here, self._root)
        return count

    def close(self) -> None:
        """Closes nothing: nothing is held open between calls."""

    def _named(self, key: str) -> str:
        """An object in a message, as a job names it."""
        return f"file://{self._root / key}"

    def _temporaries_in(self, base: Path, older_than: timedelta | None) -> Iterator[Path]:
        """Temporary files in a directory and below, in no order."""
        latest_s = None if older_than is None else time.time() - older_than.total_seconds()
        for here, _, names in self._walk(base):
            yield from (here / name for name in self._old_temporaries(here, names, latest_s))

    def _old_temporaries(self, here: Path, names: Sequence[str], latest_s: float | None) -> Iterator[str]:
        """Temporary files among those in a directory. They are dated by this machine's clock, too."""
        for name in names:
            if name.startswith(TEMPORARY_PREFIX) and (latest_s is None or is_older(here / name, latest_s)):
                yield name

    def _walk(self, base: Path) -> Iterator[tuple[Path, Sequence[str], Sequence[str]]]:
        """Directories that may be used, each with the names of those in it and of its files."""
        for folder, folders, names in os.walk(base):
            here = Path(folder)
            folders[:] = [name for name in folders if is_inside(here / name, self._within, self._without)]
            yield here, folders, names

    def _keys_under(self, base: Path, base_key: str, prefix: str, start_after: str) -> Iterator[str]:
        """Keys of files under `base` that begin with `prefix` and follow `start_after`, in byte order; with
        their slash, keys of folders that are not entered, if unreadable names are listed.

        A directory sorts with its slash: `a-b` comes before `a/b`. Linked directories are not entered: a
        link to a parent would never end. Neither are directories that may not be used.
        """
        if not is_inside(base, self._within, self._without):
            return
        try:
            for name in self._names_under(base, base_key, start_after):
                key = base_key + name
                if not (key.startswith(prefix) or prefix.startswith(key)):
                    continue
                is_after = os.fsencode(key) > os.fsencode(start_after)
                if not name.endswith("/") or (base / name).is_symlink():
                    if is_after and key.startswith(prefix):
                        yield key
                elif is_after or start_after.startswith(key):
                    yield from self._keys_under(base / name, key, prefix, start_after)
        except ObjectNotFound:
            return  # deleted in between
        except StorageDenied:
            if not self._lists_unreadable or os.fsencode(base_key) <= os.fsencode(start_after):
                raise
            yield base_key

    def _names_under(self, base: Path, base_key: str, start_after: str) -> Iterator[str]:
        first = start_after.removeprefix(base_key) if start_after.startswith(base_key) else ""
        folder, slash, _ = first.partition("/")
        return names_in(base, base_key, os.fsencode(folder + slash), only_files=not self._lists_unreadable)

    def _listed(self, key: str) -> ObjectInfo | None:
        """Describes a listed name, also one that cannot be read. None: it is gone."""
        path = self._root / key
        if key.endswith("/"):
            reason = "links to folders are not followed" if path.is_symlink() else "its names may not be read"
            return unreadable(key, path, reason)
        try:
            return self.head(key) or unreadable(key, path, "it is no file")
        except LocationNotAllowed as error:
            return unreadable(key, path, error.message)

    def _path(self, key: str) -> Path:
        return self._contained(self._root / checked_path(key))

    def _contained(self, path: Path) -> Path:
        """The path with links followed. Raises `LocationNotAllowed` if it leaves the allowed directories."""
        target = resolved(path)
        if not is_inside(target, self._within, self._without):
            raise LocationNotAllowed(f"{path} lies outside the directories this store may use", param="key")
        return target


def is_inside(path: Path, within: Iterable[Path], without: Iterable[Path]) -> bool:
    """Whether the innermost directory that holds the path, of both kinds, is one of `within`."""

    def depth(directories: Iterable[Path]) -> int:
        return max((len(outer.parts) for outer in directories if path.is_relative_to(outer)), default=0)

    return depth(within) > depth(without)


def resolved(path: Path) -> Path:
    """The path with links followed. Raises `LocationNotAllowed` for a circle of links."""
    try:
        return path.resolve()
    except RuntimeError as error:
        raise LocationNotAllowed(f"{path}: its symbolic links lead in a circle") from error
