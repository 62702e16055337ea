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


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_what_the_code_declares(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "make it anew: make docs"


def test_there_is_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == pages().keys()


def test_every_setting_is_documented_once() -> None:
    known = {name.upper() for concern in CLASSES for name in getattr(concern, "model_fields", {})}
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \|", pages()["settings.md"], re.MULTILINE)

    assert sorted(rows) == sorted(known)


def test_every_setting_is_read_by_some_code() -> None:
    names = {name for concern in CLASSES for name in getattr(concern, "model_fields", {})}
    folders = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")
    code = "\n".join(
        path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")
    )

    unread = {name for name in names if not re.search(rf"\.{name}\b", code)}
    assert unread == set(settings.QuotaSettings.model_fields), "quotas are read all together"


def test_routes_and_commands_are_all_there() -> None:
    written = pages()

    assert "| `POST /v1/chat/completions` | `submit` |" in written["routes.md"]
    assert "## `nightshift jobs retry JOB`" in written["cli.md"]
