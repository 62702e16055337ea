"""Kept columns of the input lie beside good and failed rows, in lines and in Parquet."""

import json

import pyarrow as pa
import pytest

from nightshift.bulk.results import output_rows as shard_rows
from nightshift.bulk.results import shard_results
from nightshift.bulk.results.output_rows import Chunk
from nightshift.bulk.results.part_columns import names_in_part
from nightshift.bulk.results.part_encoding import lines
from nightshift.bulk.results.segments import decode_segment, encode_segment
from nightshift.bulk.results.shard_results import Window
from nightshift.bulk.rows.records import Row
from nightshift.endpoints.texts.chat import Chat
from nightshift.jobs.options import KeepColumns
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.results.shards import CHAT, not_run, parquet, refused, said, windows

OURS = ["custom_id", "text"]


def test_lines_have_the_columns_of_good_failed_and_unread_rows(objects: ObjectStore) -> None:
    kept = {"b": 1.5, "a": {"x": "é"}}
    [window] = windows(objects, [said(0, kept=kept), refused(1, kept=kept), refused(2, kept=None)])

    written = [
        line for _, line in lines(Chunk(window, [not_run(3, kept=kept), not_run(4, kept=None)]), native=True)
    ]

    assert [json.loads(line)["columns"] for line in written] == [kept, kept, None, kept, None]
    assert all(f'"custom_id":"r{row}","columns":'.encode() in line for row, line in enumerate(written))
    assert written[0].count('"columns":{"b":1.5,"a":{"x":"é"}},"response"'.encode()) == 1


def test_lines_without_kept_columns_are_as_they_were(objects: ObjectStore) -> None:
    with_some, without = said(0, kept={"a": 1}), said(0)

    head = f'{{"id":"{without.id}","custom_id":"r0","response":{{"status_code":200,'
    assert without.native_line().startswith(head.encode())
    assert b"columns" not in with_some.openai_line()
    assert b"columns" not in not_run(0, kept={"a": 1}).said.openai_line()


def test_parquet_has_a_text_column_for_each_in_files_of_errors_too(objects: ObjectStore) -> None:
    keep = ("doc", "n", "meta", "a.b", "gone")
    kept = {"doc": "é", "n": 7, "meta": {"k": [1, None]}, "a.b": True, "gone": None}
    [window] = windows(objects, [said(0, kept=kept), refused(1, kept=kept), refused(2, kept=None)])
    chunk = Chunk(window, [not_run(3, kept=kept | {"doc": 12})])

    good, bad = (
        parquet(Chat(), half, keep_columns=keep) for half in (Chunk(chunk.succeeded()), chunk.failed())
    )

    assert good.schema == bad.schema
    assert good.schema.names[-5:] == [*keep]
    assert {good.schema.field(name).type for name in keep} == {pa.string()}
    assert good.select(keep).to_pylist() == [
        {"doc": "é", "n": "7", "meta": '{"k":[1,null]}', "a.b": "true", "gone": None}
    ]
    assert bad["doc"].to_pylist() == ["é", None, "12"]
    assert bad["custom_id"].to_pylist() == ["r1", "r2", "r3"]


def test_parquet_of_all_columns_has_the_row_in_one(objects: ObjectStore) -> None:
    [window] = windows(objects, [said(0, kept={"a": 1}), said(1, kept={"b": "x"}), refused(2, kept=None)])

    table = parquet(
        Chat(), Chunk(window, [not_run(3, kept={"c": None})]), keep_columns="all", keeps_body=True
    )

    assert table.schema.names[-2:] == ["body", "input"]
    assert table["input"].to_pylist() == ['{"a":1}', '{"b":"x"}', None, '{"c":null}']


def test_half_a_character_is_escaped_in_parquet(objects: ObjectStore) -> None:
    [window] = windows(objects, [said(0, kept={"a": "\ud83d", "b": ["\ud83d"]})])

    [row] = parquet(Chat(), Chunk(window), keep_columns=("a", "b")).to_pylist()
    assert (row["a"], row["b"]) == ("\\ud83d", '["\\ud83d"]')
    assert parquet(Chat(), Chunk(window), keep_columns="all")["input"].to_pylist() == [
        '{"a":"\\ud83d","b":["\\ud83d"]}'
    ]


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        (("a", "b"), ["a", "b"]),
        (("text", "a"), ["input.text", "a"]),
        (("text", "input.text"), ["input.input.text", "input.text"]),
        (("custom_id", "input"), ["input.custom_id", "input"]),
        ("all", ["input"]),
    ],
)
def test_a_column_that_a_part_has_already_gets_another_name(wish: KeepColumns, names: list[str]) -> None:
    assert names_in_part(wish, OURS) == names


def test_segments_have_what_is_kept_and_those_without_are_as_they_were(objects: ObjectStore) -> None:
    rows = [said(0, kept={"a": "\ud83d"}), refused(1, kept=None)]
    plain = said(2)

    stored = decode_segment(encode_segment(CHAT, rows).data)
    assert [result.native_line() for result in stored] == [result.native_line() for result in rows]
    assert b"kept" not in encode_segment(CHAT, [plain]).data
    [window] = windows(objects, rows, [plain])
    assert [result.kept for result in window.results()] == ['{"a":"\ud83d"}', "null", None]
    [missing] = windows(objects, [plain])
    assert parquet(Chat(), Chunk(missing), keep_columns=("a",))["a"].to_pylist() == [None]


def test_what_is_kept_counts_among_what_is_held_at_a_time(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_results, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(shard_rows, "MISSING_CHARS_MAX", 1000)
    large = {"a": "x" * 600}

    all_windows: list[Window] = windows(objects, [said(row, kept=large) for row in range(4)])
    assert [window.rows for window in all_windows] == [[0], [1], [2], [3]]

    ran = windows(objects, [said(row, kept="") for row in (1, 6)])
    inputs = (Row(row, large) for row in range(10))
    chunks = shard_rows.merged(
        iter(ran), inputs, 0, lambda row: not_run(row.index, kept=large), shard_rows.Listing()
    )
    held = [[row.row for row in chunk.missing] for chunk in chunks]
    assert held == [[0, 2], [3, 4], [5], [7, 8], [9]]
