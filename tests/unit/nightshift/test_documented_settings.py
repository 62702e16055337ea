"""docs/operations.md documents every setting, and no other."""

import re
from pathlib import Path

import pytest

from nightshift import settings
from nightshift.settings import ApiSettings

# Settings that no code reads yet. The commit that puts one into effect removes it here and documents it.
NOT_YET_IN_EFFECT: set[str] = set()

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
CLASSES = [
    found
    for found in vars(settings).values()
    if isinstance(found, type) and found.__name__.endswith("Settings") and hasattr(found, "model_fields")
]


@pytest.mark.parametrize("concern", CLASSES, ids=lambda concern: concern.__name__)
def test_every_setting_is_documented(concern: type[ApiSettings]) -> None:
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", PAGE))
    missing = {name.upper() for name in concern.model_fields} - documented - NOT_YET_IN_EFFECT
    assert not missing, f"docs/operations.md does not say what these do: {sorted(missing)}"


def test_a_setting_that_no_code_reads_is_not_documented() -> None:
    known = {name.upper() for concern in CLASSES for name in concern.model_fields}

    assert known >= NOT_YET_IN_EFFECT
    assert not [name for name in NOT_YET_IN_EFFECT if name in PAGE]
    assert {name for name in NOT_YET_IN_EFFECT if is_read(name.lower())} == set()


def is_read(setting: str) -> bool:
    """Whether some code outside the settings asks for it."""
    asked = re.compile(rf"settings\.(\w+\.)?{setting}\b")
    packages = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    return any(asked.search(file.read_text(encoding="utf-8")) for file in files)


def test_no_setting_is_documented_that_does_not_exist() -> None:
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", tables))
    known = {name.upper() for concern in CLASSES for name in concern.model_fields}
    assert documented <= known, f"unknown: {sorted(documented - known)}"
