"""Faults that a directory alone can have: links, unfinished files, folders left empty."""

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import LocationNotAllowed
from nightshift.objectstore import open_store
from tests.integration.objectstore.test_objectstore import keys


def test_a_symbolic_link_does_not_lead_out_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    store = open_store((tmp_path / "root").as_uri())
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "file").symlink_to(tmp_path / "outside" / "secret")

    for key in ("link/secret", "file"):
        with pytest.raises(LocationNotAllowed):
            store.read(key)
    with pytest.raises(LocationNotAllowed):
        store.put("link/new", b"x")


def test_links_in_a_circle_are_refused_and_not_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("a/b", b"x")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    assert keys(store) == ["a/b"]
    with pytest.raises(LocationNotAllowed):
        store.head("loop/x")


def test_an_unfinished_file_is_in_no_listing(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())

    def body() -> Iterator[bytes]:
        yield b"x"
        assert any(tmp_path.iterdir()), "the temporary file lies beside its target"
        assert keys(store) == []
        yield b"y"

    store.put("k", body())
    assert keys(store) == ["k"]
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_deleting_the_last_object_of_a_folder_removes_the_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("a/b/c", b"x")
    store.put("a/d", b"x")

    store.delete("a/b/c")

    assert not (tmp_path / "a" / "b").exists()
    assert keys(store) == ["a/d"]


@pytest.mark.parametrize("names_max", [1, 2, 3, 50])
def test_a_folder_of_more_names_than_are_held_is_listed_in_order_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_max: int
) -> None:
    monkeypatch.setattr("nightshift.objectstore.directory_files.NAMES_MAX", names_max)
    store = open_store(tmp_path.as_uri())
    expected = sorted(
        ["a", "a-b", "b/1", "b/2", "b/c/1", "b/c-1", "b-", "b.", "bb", "c/d/e", "\u00e9", "z/1"]
    )
    for key in reversed(expected):
        store.put(key, b"x")

    assert keys(store) == expected
    for place, key in enumerate(expected):
        assert [info.key for info in store.list(start_after=key)] == expected[place + 1 :]
    assert [info.key for info in store.list("b", start_after="b.")] == ["b/1", "b/2", "b/c-1", "b/c/1", "bb"]


def test_no_more_names_of_a_folder_are_held_than_a_part_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.objectstore.directory_files.NAMES_MAX", 10)
    held: list[int] = []
    chosen = heapq.nsmallest

    def counted(count: int, names: Iterator[str], key: Any) -> list[str]:
        part = chosen(count, names, key)
        held.append(len(part))
        return part

    monkeypatch.setattr("heapq.nsmallest", counted)
    store = open_store(tmp_path.as_uri())
    for number in range(25):
        (tmp_path / f"{number:02}").write_bytes(b"x")

    assert len(keys(store)) == 25
    assert held == [10, 10, 5]
