"""Keeps the service's own files from other users of the machine, whoever made the folder that they are in.

Each process begins with it: what it and its children make has mode 0600, and folders 0700. What an earlier
release left open is closed. Outputs of jobs are not the service's own: they are made under the umask that the
first process was started with, or OUTPUT_UMASK, so that the programs that read them can.
"""

import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from nightshift.process.settings import PREFIX, DataSettings, LocationSettings

log = logging.getLogger(__name__)

OWN_UMASK: Final = 0o077
OTHERS: Final = 0o077  # the bits of group and others
CLOSED_MAX: Final = 5_000  # files looked at, the upper folders first: a closed folder protects what is below

# Names of the service's own entries in DATA_DIR, beside `files/`, which is for jobs. Others' may lie there.
_OWN_NAMES: Final = (
    "objects",
    "valkey",
    "metrics",
    "logs",
    "adapters",
    "api_key",
    "secret_key",
    "up.lock",
)
# Names of its folders in its object store, whose folder the operator chose: others' files may lie there, too.
_OWN_FOLDERS: Final = ("digests", "doctor", "files", "results", "retention", "segments", "uploads")


def keep_files_private(data: DataSettings, warn: Callable[[str], object] = log.warning) -> None:
    """Keeps the files of this process and its children private. Tells `warn` of folders that are open to
    other users.
    """
    before = os.umask(OWN_UMASK)
    if LocationSettings().output_umask is None:
        os.environ[f"{PREFIX}OUTPUT_UMASK"] = f"{before:03o}"
    for path in _within(_own_paths(data)):
        _close(path)
    for folder in _chosen_folders(data):
        if _mode(folder) & OTHERS:
            warn(
                f"{folder} is open to other users of this machine (mode {_mode(folder):03o}): the service's "
                f"files in it are not, but their names can be read, or more; `chmod 700 {folder}` closes it"
            )


def _chosen_folders(data: DataSettings) -> list[Path]:
    """Folders that the operator named, and may have made."""
    folders = dict.fromkeys(map(Path, data.own_places[:2]))
    return [folder for folder in folders if folder.is_dir()]


def _own_paths(data: DataSettings) -> Iterator[Path]:
    """The service's own paths, if they exist: the names above, the objects, the database and its logs."""
    data_dir, storage, *database = map(Path, data.own_places)
    for path in (data_dir / name for name in _OWN_NAMES):
        target = _led_to(path)
        if target == path or not target.is_dir():
            yield target
        elif path.name == "objects":  # other folders behind links are the operator's, with all in them
            yield from (target / name for name in _OWN_FOLDERS)
    # SQLite keeps its logs beside the file that a link leads to. A directory is none, and may be anyone's.
    if database and not (file := _led_to(database[0])).is_dir():
        yield from (Path(f"{file}{str(path).removeprefix(str(database[0]))}") for path in database)
    yield from (storage / name for name in _OWN_FOLDERS)


def _led_to(path: Path) -> Path:
    """Follows a link that this user made, as to another disk."""
    is_our_link = path.is_symlink() and path.lstat().st_uid == os.geteuid()
    return path.resolve() if is_our_link else path


def _within(paths: Iterator[Path]) -> Iterator[Path]:
    """The paths and what lies in them, the upper ones first, without links; at most `CLOSED_MAX`."""
    waiting = deque(dict.fromkeys(paths))
    seen = 0
    while waiting and seen < CLOSED_MAX:
        path = waiting.popleft()
        if path.is_symlink() or not path.exists():
            continue
        seen += 1
        yield path
        if path.is_dir():
            waiting.extend(_children(path, CLOSED_MAX - seen))


def _children(folder: Path, limit: int) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry, _ in zip(entries, range(limit), strict=False)]
    except OSError:  # another user's, or gone
        return []


def _close(path: Path) -> None:
    """Closes a file or folder of this user to others; sockets have modes of their own."""
    try:
        status = path.lstat()
        is_ours = status.st_uid == os.geteuid() and (
            stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        )
        if is_ours and status.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
    except OSError as error:
        log.warning("not closed to other users", extra={"action": "open_file", "error": str(error)})


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
