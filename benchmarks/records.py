"""What model code computed, as it says itself: a line for each call, in a file of its process.

    BEGAN_NS ENDED_NS ROWS        CLOCK_MONOTONIC; ENDED_NS is 0 when it begins, and a second line has both

Standard library only: Ray's actors have it as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = "NIGHTSHIFT_BENCH_RECORDS"


@dataclass(frozen=True)
class Call:
    pid: int
    began_ns: int
    ended_ns: int
    """0: it has not ended."""
    rows: int


class Recorder:
    """Writes this process's file, in the folder that the environment names."""

    def __init__(self) -> None:
        path = Path(os.environ[FOLDER]) / str(os.getpid())
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def call(self, rows: int) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        self._write(began_ns, 0, rows)  # first: a process that is killed has begun them
        yield
        self._write(began_ns, time.monotonic_ns(), rows)

    def _write(self, began_ns: int, ended_ns: int, rows: int) -> None:
        os.write(self._file, f"{began_ns} {ended_ns} {rows}\n".encode())


def calls_begun(folder: Path) -> list[Call]:
    """In order."""
    return sorted((call for call in _calls(folder) if not call.ended_ns), key=lambda call: call.began_ns)


def calls_ended(folder: Path) -> list[Call]:
    """In order of their beginnings."""
    return sorted((call for call in _calls(folder) if call.ended_ns), key=lambda call: call.began_ns)


def _calls(folder: Path) -> Iterator[Call]:
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            began_ns, ended_ns, rows = map(int, line.split())
            yield Call(int(path.name), began_ns, ended_ns, rows)
