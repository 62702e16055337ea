"""A wall clock of a process's own, wrong by what a file says."""

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("shifted_clock.c")


def shifting_library(folder: Path) -> Path:
    """Builds the library that a process preloads. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler makes what shifts a process's clock")
    library = folder / "shifted_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


class Clocks:
    """The error of each role's wall clock."""

    def __init__(self, folder: Path, roles: Sequence[str]) -> None:
        self._folder = folder
        self.set(dict.fromkeys(roles, 0))

    def set(self, shifts_s: Mapping[str, int]) -> None:
        for role, shift_s in shifts_s.items():
            with (self._folder / role).open("r+b" if (self._folder / role).exists() else "wb") as file:
                file.write(struct.pack("q", shift_s))


def shifted_environment(folder: Path, ahead_s: int) -> Mapping[str, str]:
    """The environment of a process whose clock is this far ahead."""
    (folder / "shifted").write_bytes(struct.pack("q", ahead_s))
    library = str(shifting_library(folder))
    return {"LD_PRELOAD": library, "CLOCKS": str(folder), "NIGHTSHIFT_ROLE": "shifted"}
