"""A control group of a test, in which memory is short: the kernel ends a process that takes too much."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """Version 1 or 2; only what the two have in common."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._home = path.parent

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Starts processes of this block in the group, where they stay."""
        self._move(self._path)
        try:
            yield
        finally:
            self._move(self._home)

    def _move(self, to: Path) -> None:
        (to / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def short_of_memory(limit_bytes: int) -> Iterator[ControlGroup]:
    """Skips the test where this process may make no control groups."""
    path = _home() / f"nightshift-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limits = [path / name for name in ("memory.max", "memory.limit_in_bytes")]
        limit = next((file for file in limits if file.exists()), None)
        if limit is None:
            pytest.skip("control groups made here do not limit memory")
        limit.write_text(str(limit_bytes))
        yield ControlGroup(path)
    finally:
        with suppress(OSError):  # a process is still in it: the test has failed, and says why
            path.rmdir()


def _home() -> Path:
    """The group that this process is in."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, names, path in groups:
        if "memory" in names.split(","):
            return ROOT / "memory" / path.lstrip("/")
    return ROOT / next((path for _, names, path in groups if not names), "/").lstrip("/")
