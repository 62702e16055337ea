"""What git tracks can be checked out anywhere."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_no_tracked_file_is_a_link() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--stage"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert [line for line in tracked.splitlines() if line.startswith("120000")] == []
