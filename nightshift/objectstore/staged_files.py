"""Staged writes in a directory: a hidden file beside its target, renamed when it is published.

    out/.nightshift-tmp-<32 hex digits>.part-00001.jsonl     the upload's id is this name

A file that was unlinked can neither be renamed nor be made again by a late writer, which only opens it.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nightshift.errors import ObjectNotFound
from nightshift.objectstore.directory_files import opened_beside, sync_directory
from nightshift.objectstore.fences import check_fence
from nightshift.objectstore.objects import TEMPORARY_PREFIX, Staged
from nightshift.objectstore.time_limits import check_time

_UPLOAD_ID: Final = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}\.(?P<target>[^/]+)", re.DOTALL)


def begin(path: Path, umask: int | None = None) -> str:
    """Make an empty hidden file beside the target. Returns its name."""
    with opened_beside(path, suffix=f".{path.name}", umask=umask) as file:
        return Path(file.name).name


def target_of(name: str) -> str | None:
    """The name that a staged file gets when it is published; None of another kind of file."""
    found = _UPLOAD_ID.fullmatch(name)
    return None if found is None else found["target"]


def write(path: Path, upload_id: str, pieces: Iterable[bytes]) -> None:
    """Write the hidden file to the disk. Raises ObjectNotFound if it was discarded, before or meanwhile."""
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


def publish(path: Path, staged: Staged) -> bool:
    """Give the hidden file its name. False: it is not there, or not the one that was staged."""
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


def discard(path: Path, upload_id: str) -> None:
    with suppress(FileNotFoundError):
        _hidden(path, upload_id).unlink()


def _hidden(path: Path, upload_id: str) -> Path:
    """Raises ObjectNotFound for an id that is not of this target: it might name any file."""
    if target_of(upload_id) != path.name:
        raise ObjectNotFound(f"no upload {upload_id!r} of {path.name}")
    return path.parent / upload_id


def _discarded(path: Path) -> ObjectNotFound:
    return ObjectNotFound(f"what was staged as {path.name} has been discarded: stage it anew")
