"""docs/reference/ is what the code declares."""

import inspect
import re
from pathlib import Path

import pytest

from infra.reference import FOLDER, pages
from nightshift.process import settings

ROOT = Path(__file__).resolve().parents[2]
CLASSES = [
    concern
    for concern in vars(settings).values()
    if inspect.isclass(concern) and concern.__name__.endswith("Settings") and concern.__name__ != "_Settings"
]
NAMES = {name for concern in CLASSES for name in getattr(concern, "model_fields", {})}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_the_pages_are_what_the_code_declares(made: dict[str, str]) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert written.keys() == made.keys()
    assert [name for name in made if written[name] != made[name]] == [], "make them anew: make docs"


def test_every_setting_is_documented_once(made: dict[str, str]) -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \|", made["settings.md"], re.MULTILINE)

    assert sorted(rows) == sorted(name.upper() for name in NAMES)


def test_every_setting_is_read_by_some_code() -> None:
    folders = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)

    unread = {name for name in NAMES if not re.search(rf"\.{name}\b", code)}
    assert unread == set(settings.QuotaSettings.model_fields), "quotas are read all together"


def test_routes_and_commands_are_all_there(made: dict[str, str]) -> None:
    assert "| `POST /v1/chat/completions` | `submit` |" in made["routes.md"]
    assert "## `nightshift jobs retry JOB`" in made["cli.md"]
