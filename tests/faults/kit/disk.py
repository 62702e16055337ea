"""A disk of a test's own that can be filled up, and have room made on it again."""

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.integration.servers import RAM_DISK

SIZE_BYTES: Final = 24 * 1024 * 1024
BALLAST: Final = "ballast"


class Disk(Protocol):
    folder: Path  # on it

    def fill(self) -> None:
        """Not a byte more."""

    def make_room(self) -> None: ...


class Tmpfs:
    """A file system in memory, full when something large lies on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with (self.folder / BALLAST).open("ab", buffering=0) as ballast:
            with suppress(OSError):
                while ballast.write(bytes(64 * 1024)):
                    continue

    def make_room(self) -> None:
        (self.folder / BALLAST).unlink()


class FileSizeLimit:
    """Where nothing can be mounted: processes that may not write to files, as on a full disk (EFBIG, though,
    not ENOSPC).
    """

    def __init__(self, folder: Path, pids: Callable[[], list[int]]) -> None:
        self.folder = folder
        self._pids = pids

    def fill(self) -> None:
        self._limit(0)

    def make_room(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        for pid in self._pids():
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes if size_bytes == 0 else hard, hard))


@contextmanager
def small_disk(pids: Callable[[], list[int]]) -> Iterator[Disk]:
    """A small disk, or a limit of the writing of `pids`, whichever this machine and user allow. Skips the
    test where neither is possible.
    """
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as name:
        folder = Path(name)
        if _mounted(folder):
            try:
                yield Tmpfs(folder)
            finally:
                subprocess.run(["umount", "--lazy", name], check=True)
        elif hasattr(resource, "prlimit"):
            yield FileSizeLimit(folder, pids)
        else:
            pytest.skip("no disk can be filled here: neither mount(8) nor prlimit(2) is ours to use")


def _mounted(folder: Path) -> bool:
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
