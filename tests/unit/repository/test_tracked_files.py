"""The files that git tracks can be checked out anywhere."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_no_tracked_file_is_a_link() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--stage"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert [line for line in tracked.splitlines() if line.startswith("120000")] == []


def test_make_clean_removes_what_git_ignores_but_what_a_user_has_written() -> None:
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if "*" not in line}
    kept = {".nightshift", ".env", "node_modules"} | {line for line in ignored if line.startswith("/")}
    if shutil.which("make") is None:
        pytest.skip("no make here")
    shown = subprocess.run(
        ["make", "--dry-run", "clean"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert ignored - kept - set(shown.split()) == set()


def test_the_readme_shows_the_program_that_it_names() -> None:
    _, program = (ROOT / "examples" / "first_batch.py").read_text(encoding="utf-8").rsplit('"""\n\n', 1)

    assert f"```python\n{program}```" in (ROOT / "README.md").read_text(encoding="utf-8")
