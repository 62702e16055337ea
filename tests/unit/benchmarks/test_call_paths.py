"""The counts of functions are of a request and a row that ended well, and find the row where it is held."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import call_paths, report
from benchmarks.call_paths import ROW, file_of, holds_row
from nightshift.bulk.rows.templates import render


@dataclass(frozen=True, slots=True)
class Held:
    value: object


def test_a_row_is_found_in_texts_bytes_and_containers() -> None:
    for value in (ROW[0], f"a text, {ROW[1]}".encode(), {"id": [ROW[0]]}, (1, (ROW[0],))):
        assert holds_row(value), value
    for value in ("doc", b"", 0, None, {"id": ["another"]}):
        assert not holds_row(value), value


def test_objects_are_looked_into_where_their_class_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not holds_row(Held(ROW[0]))
    monkeypatch.setattr(call_paths, "OURS", ("tests",))
    assert holds_row(Held(ROW[0]))


def test_only_functions_of_ours_count() -> None:
    assert file_of(render.__code__) == "nightshift/bulk/rows/templates.py"
    assert file_of(json.dumps.__code__) is None
    assert file_of(compile("1", render.__code__.co_filename, "exec")) is None


def test_every_path_is_counted_beside_its_goal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS_DIRECTORY", tmp_path)
    try:
        call_paths.main([])
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]

    rows = json.loads((tmp_path / "call-paths.json").read_text())["rows"]
    assert [row["unit"] for row in rows] == ["functions", "files"] * 3 + ["classes", "files"]
    assert all(row["value"] > 1 for row in rows)
