"""No process of ours imports a module from the folder in which a user started it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for package in ("api", "nightshift", "nightshift_engine", "scheduler", "workers")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "sys.executable" in path.read_text()
]
PYTHON = re.compile(r"sys\.executable,\s*(\S+)")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_is_started_without_the_working_directory_on_its_path(path: Path) -> None:
    options = PYTHON.findall(path.read_text())
    assert options, "the command is written in another way: look at it, and let this test see it"
    assert {option.rstrip(",") for option in options} == {'"-P"'}
