"""Rows of Parquet, however it was written, and what becomes of damage."""

import random
import re
from typing import Any

import pyarrow as pa
import pytest

from nightshift.bulk.rows.inputs import BadRow, Row, UnreadableInput, describe, iter_rows
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import a_shard, data, parquet, rows_of, stream


def test_a_shard_has_the_rows_of_its_row_groups(store: ObjectStore) -> None:
    content = parquet(pa.table({"n": range(10)}), row_group_size=3)

    assert data(rows_of(store, content, "parquet", start=1, end=3)) == [{"n": n} for n in range(3, 9)]
    assert data(rows_of(store, content, "parquet", start=3)) == [{"n": 9}]
    assert rows_of(store, content, "parquet", start=4) == []


@pytest.mark.parametrize("store_schema", [False, True])
def test_times_of_96_bits_are_read_whatever_their_year(store: ObjectStore, store_schema: bool) -> None:
    """As Spark and Impala write them."""
    texts = ["1500-01-01T00:00:00", "2026-01-02T03:04:05.600000", "9999-12-31T00:00:00", None]
    times = pa.array(texts).cast(pa.timestamp("us"))
    table = pa.table({"at": times, "all": pa.array([[text] for text in texts]).cast(pa.list_(times.type))})
    content = parquet(table, use_deprecated_int96_timestamps=True, store_schema=store_schema)

    rows = data(rows_of(store, content, "parquet"))

    assert rows == [{"at": text, "all": [text]} for text in texts]


def test_lists_of_nulls_are_read_beside_a_value_that_is_not(store: ObjectStore) -> None:
    records = [{"x": [None] * (number % 4 + 1), "y": 0.1} for number in range(30)]
    type = pa.struct({"x": pa.list_(pa.null()), "y": pa.float32()})
    times = pa.array([*range(29), 10**12]).cast(pa.timestamp("s"))

    rows = data(rows_of(store, parquet(pa.table({"c": pa.array(records, type), "t": times})), "parquet"))

    assert [row["c"] for row in rows] == records


def test_a_footer_that_says_more_rows_than_there_are_is_damage(store: ObjectStore) -> None:
    """The shards were planned by it."""
    table = pa.table({"n": range(100)})
    content = parquet(table, write_statistics=False, store_schema=False, use_dictionary=False)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    said = content[footer:].replace(b"\xc8\x01", b"\xd0\x02")  # 168, as Thrift writes it

    with pytest.raises(UnreadableInput, match=r"has 100 rows, and its footer says 168"):
        rows_of(store, content[:footer] + said, "parquet")


def test_a_row_group_may_have_no_rows(store: ObjectStore) -> None:
    table = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.list_(pa.string()))})

    assert rows_of(store, parquet(table), "parquet") == []


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "store_schema": False},
        {"compression": "none", "data_page_size": 300, "dictionary_pagesize_limit": 500},
        {"compression": "lz4", "use_dictionary": False, "write_batch_size": 1, "data_page_size": 1},
        {
            "use_dictionary": False,
            "column_encoding": {"text": "DELTA_BYTE_ARRAY", "number": "DELTA_BINARY_PACKED"},
        },
        pytest.param(
            {"write_page_checksum": True, "write_page_index": True, "write_statistics": False},
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_dictionaries", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_rows_are_read_however_they_were_written(
    store: ObjectStore, options: dict[str, Any], as_dictionaries: bool
) -> None:
    """Numbered through all row groups and pieces, and with a row that is too long among them."""
    seed = 7
    print(f"seed={seed}")
    numbers = random.Random(seed)

    def text() -> str:
        return numbers.choice(["yes", "no", "perhaps"]) * numbers.choice([1, 1, 1, 40])

    records = [
        {
            "number": number,
            "text": None if number % 7 == 0 else text() + str(number),
            "kind": text() if number != 1500 else "x" * 10_000,
            "tags": [text() for _ in range(number % 5)],
            "messages": [{"role": text(), "content": f"{number} {text()}"} for _ in range(number % 3)],
            "lists": [[text()], None] if number % 2 else None,
        }
        for number in range(2500)
    ]
    table = pa.Table.from_pylist(records)
    if as_dictionaries:
        table = table.set_column(2, "kind", table["kind"].dictionary_encode())

    rows = rows_of(store, parquet(table, row_group_size=1200, **options), "parquet", line_bytes_max=5000)

    assert data(rows) == [*records[:1500], "line_too_long", *records[1501:]]
    assert [row.index for row in rows] == list(range(2500))


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        (None, {"id", "text", "wide", "meta", "meta.lang"}),
        (["text", "id"], {"id", "text"}),
        (["meta.author"], {"meta"}),
        (["meta.lang"], {"meta", "meta.lang"}),  # pyarrow takes both: the second has that very name
        ([], {"id"}),  # for the number of rows
        (["text", "gone"], {"id", "text", "wide", "meta", "meta.lang"}),  # an error names those there are
    ],
)
def test_only_the_named_columns_are_read(
    store: ObjectStore, columns: list[str] | None, read: set[str]
) -> None:
    wide = random.Random(7).randbytes(1_000_000).hex()
    table = pa.table(
        {
            "id": [1, 2],
            "text": ["a", "b"],
            "wide": [wide] * 2,
            "meta": [{"author": "c", "lang": "en"}] * 2,
            "meta.lang": ["de", "de"],
        }
    )
    pieces: list[int] = []
    info = store.put("k", parquet(table))
    shard = a_shard("parquet", "k")

    reader = WatchedReader(store, pieces.append)
    rows = data(list(iter_rows(reader, "k", shard, columns=columns, line_bytes_max=10_000_000)))

    assert [set(row) for row in rows] == [read] * 2
    assert (columns is None) == (sum(pieces) > info.size_bytes / 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1",
        b"not parquet at all",
        parquet(pa.table({"a": [1]}))[:-20],
        parquet(pa.table({"zz": [1]}), store_schema=False).replace(b"zz", b"z\xff"),
    ],
)
def test_what_is_not_parquet_is_unreadable(store: ObjectStore, content: bytes) -> None:
    with pytest.raises(UnreadableInput):
        rows_of(store, content, "parquet")


def test_an_object_is_described_by_its_footer(store: ObjectStore) -> None:
    info = store.put("a.parquet", parquet(pa.table({"n": range(10)}), row_group_size=4))

    described = describe(store, info, "file:///a.parquet")

    assert [group.rows for group in described.row_groups] == [4, 4, 2]
    assert described.row_count == 10
    assert all(group.size_bytes > 0 for group in described.row_groups)


TABLE = pa.table({"t": [f"{number:030}" for number in range(3000)]})
PARQUET = parquet(TABLE)
MIDDLE = len(PARQUET) // 2


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("parquet", PARQUET[:MIDDLE] + b"\xff" * 500 + PARQUET[MIDDLE + 500 :]),
        ("arrow", stream(TABLE)[:-1000]),
    ],
)
def test_damage_behind_the_first_rows_is_named_with_the_row_before(
    store: ObjectStore, format: str, content: bytes
) -> None:
    store.put("k", content)
    shard = a_shard(format, "k")
    read: list[Row | BadRow] = []

    with pytest.raises(UnreadableInput) as caught:
        read.extend(iter_rows(store, "k", shard, line_bytes_max=200))

    assert read
    assert re.match(rf"k cannot be read as .* after row {len(read)}, and no row", caught.value.message)


def test_the_reason_of_an_object_that_is_cut_short_ends_with_one_full_stop(store: ObjectStore) -> None:
    for size_bytes in range(8, len(PARQUET), 4997):
        with pytest.raises(UnreadableInput, match=r"^k cannot be read as Parquet.*[^.]\.\Z"):
            rows_of(store, PARQUET[:size_bytes], "parquet")
