"""The threads that share a kernel's work, checked in C++ where they can be stopped at will."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nightshift_engine.kernels.native.build import SOURCES

CHECK = Path(__file__).with_name("team_check.cpp")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler, so no native kernels")
def test_a_team_writes_every_part_once_and_takes_over_from_threads_that_are_stuck(tmp_path: Path) -> None:
    program = tmp_path / "check"
    flags = ["-O2", "-std=c++17", "-fopenmp", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}"]
    subprocess.run(["g++", *flags, str(CHECK), "-o", str(program)], check=True)

    checked = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)

    assert checked.returncode == 0, checked.stdout
