"""Input objects of a few bytes that stand for very many: reading them stays within bounded memory."""

import gzip
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.rows.inputs import BadRow, UnreadableInput, describe, iter_rows
from nightshift.jobs import NewShard
from nightshift.objectstore import DirectoryStore
from tests.security.costly.children import MIB, in_child

LINE_BYTES_MAX = 4 * MIB
MEMORY_BYTES = 100 * MIB  # in the process that reads the rows; the one that decodes has its own limit


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def one_text_many_times() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * 12_000_000])
    return parquet(pa.table({"t": texts}), dictionary_pagesize_limit=2**30)


def more_text_than_2_gib() -> bytes:
    """One batch, whose texts have offsets of 32 bits."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * 40_000_000])
    return parquet(pa.table({"t": texts}), dictionary_pagesize_limit=2**30, store_schema=False)


def beginnings_in_common() -> bytes:
    texts = [f"{'x' * 5_000_000}{number}" for number in range(2)]
    table = pa.table({"t": texts * 32})
    return parquet(table, use_dictionary=False, column_encoding={"t": "DELTA_BYTE_ARRAY"})


def one_long_list() -> bytes:
    return parquet(pa.table({"v": pa.array([[7] * 20_000_000], pa.list_(pa.int64()))}))


def one_large_text() -> bytes:
    return parquet(pa.table({"t": ["x" * 100_000_000]}), use_dictionary=False)


def one_text_in_a_list() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * 1_000_000])
    table = pa.table({"t": pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), texts)})
    return parquet(table, dictionary_pagesize_limit=2**30, store_schema=False)


def large_values_of_a_fixed_size() -> bytes:
    value = pa.array([b"x" * 12_000_000], pa.binary(12_000_000))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), value)
    return parquet(pa.table({"t": values}), dictionary_pagesize_limit=2**30)


def many_pages_in_a_batch() -> bytes:
    """Each page has a row."""
    texts = [random.Random(n).randbytes(10_000).hex() + "x" * 10_000_000 for n in range(40)]
    return parquet(pa.table({"t": texts}), use_dictionary=False, write_batch_size=1)


def a_text_larger_than_its_footer_says() -> bytes:
    content = one_large_text()
    size = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0).total_uncompressed_size
    return with_a_footer(content, {number(size): number(1000)})


def a_list_longer_than_its_footer_says() -> bytes:
    return with_a_footer(one_long_list(), {number(20_000_000): number(1)})


def a_dictionary_that_the_footer_does_not_name() -> bytes:
    """The offset of the data is the dictionary's, and a field that is not known is in place of the other."""
    content = one_text_many_times()
    column = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
    offsets = b"\x26" + number(column.data_page_offset) + b"\x26" + number(4)
    return with_a_footer(content, {offsets: b"\x26" + number(4) + b"\x46" + number(4)})


def an_encoding_that_the_footer_does_not_name() -> bytes:
    """Two encodings: RLE and, for DELTA_BYTE_ARRAY, PLAIN."""
    return with_a_footer(beginnings_in_common(), {b"\x25\x06\x0e": b"\x25\x06\x00"})


def long_names_in_a_list() -> bytes:
    objects = pa.StructArray.from_arrays([pa.array([False] * 4000)], ["x" * 200_000])
    return parquet(pa.table({"t": pa.ListArray.from_arrays(pa.array([0, 4000], pa.int32()), objects)}))


def one_bit_each() -> bytes:
    return parquet(pa.table({"v": pa.array([[False] * 5_000_000])}), use_dictionary=False)


def a_text_in(type: pa.DataType) -> Callable[[], bytes]:
    text = random.Random(1).randbytes(2_500_000).hex()
    return lambda: parquet(pa.table({"t": pa.array([text], type)}), use_dictionary=False)


def texts_in_a_list_of_a_fixed_size() -> bytes:
    texts = pa.array([random.Random(n).randbytes(500_000).hex() for n in range(5)])
    return parquet(pa.table({"t": pa.FixedSizeListArray.from_arrays(texts, 5)}), use_dictionary=False)


def a_header_of_a_length_that_thrift_cuts() -> bytes:
    """After a page's description, a binary field of 2**32 + 4 bytes: Thrift reads 4."""
    options = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    content = parquet(pa.table({"t": ["x" * 100_000_000]}), **options)
    size = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0).total_compressed_size
    end = content.index(b"\x28\xb5\x2f\xfd") - 1  # zstd's
    added = b"\x48" + number(2**31 + 2) + b"abcd"
    return with_a_footer(content[:end] + added + content[end:], {number(size): number(size + len(added))})


def very_many_lists_of_one_large_text() -> bytes:
    texts = pa.array(["x" * 500_000, "s"])
    values = pa.DictionaryArray.from_arrays(pa.array([1] * 19 + [0], pa.int32()), texts)
    lists = pa.ListArray.from_arrays(pa.array(range(21), pa.int32()), values)
    options = {"store_schema": False, "dictionary_pagesize_limit": 2**30, "write_statistics": False}
    return parquet(pa.table({f"c{number}": lists for number in range(200)}), **options)


def a_footer_of_very_many_columns() -> bytes:
    """It says so."""
    schema = b"\x15\x02\x19\x2c\x48\x01r\x15\x02\x00\x15\x02\x25\x02\x18\x01l\x00"
    footer = schema + b"\x16\x00\x19\x1c\x19\xfc" + b"\xbf\x84\x3d"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def a_footer_of_another_schema_than_its_statistics() -> bytes:
    """pyarrow ends the process when it reads such a column."""
    content = parquet(pa.table({"a": [1, 2]}), store_schema=False)
    return with_a_footer(content, {b"\x25\x02\x18\x01a": b"\x25\x00\x18\x01a"})  # required


def with_a_footer(content: bytes, changes: dict[bytes, bytes]) -> bytes:
    """Bytes of the footer replaced."""
    footer_start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[footer_start:-8]
    for before, after in changes.items():
        assert before in footer
        footer = footer.replace(before, after)
    return content[:footer_start] + footer + len(footer).to_bytes(4, "little") + content[-4:]


def number(value: int) -> bytes:
    """As Thrift's compact protocol writes an integer."""
    rest, content = value << 1, b""
    while rest > 0x7F:
        content, rest = content + bytes([rest & 0x7F | 0x80]), rest >> 7
    return content + bytes([rest])


def outcomes(folder: str, name: str, line_bytes_max: int = LINE_BYTES_MAX) -> list[str]:
    """Each row's error code, or `row`. Or why the file cannot be read."""
    shard = NewShard(shard_no=0, uri=name, format=name.partition(".")[2], start=0, end=None)
    rows = iter_rows(DirectoryStore(Path(folder)), name, shard, line_bytes_max=line_bytes_max)
    try:
        return [row.code if isinstance(row, BadRow) else "row" for row in rows]
    except UnreadableInput as error:
        return [f"{error.code}: {error}"]


def all_outcomes(folder: str, names: list[str]) -> list[list[str]]:
    return [outcomes(folder, name) for name in names]


Case = tuple[Callable[[], bytes], list[str]]


def check(folder: Path, ending: str, cases: Sequence[Case], cpu_s: int = 10) -> None:
    """Each file's outcomes are as expected, or have what is expected of them."""
    names = [f"{number}.{ending}" for number in range(len(cases))]
    for name, (make, _) in zip(names, cases, strict=True):
        (folder / name).write_bytes(make())

    results = in_child(all_outcomes, str(folder), names, cpu_s=cpu_s, memory_bytes=MEMORY_BYTES)

    for name, (make, expected), outcomes in zip(names, cases, results, strict=True):
        are_as_expected = [why in outcome for why, outcome in zip(expected, outcomes, strict=True)]
        assert all(are_as_expected), (name, make, outcomes)


COSTLY_PARQUET: list[Case] = [
    (one_text_many_times, ["line_too_long"] * 64),
    (one_text_in_a_list, ["A row takes more than 1073741824 bytes of memory decoded"]),
    (one_large_text, ["line_too_long"]),
    (long_names_in_a_list, ["line_too_long"]),
    (a_text_in(pa.string_view()), ["line_too_long"]),
    (very_many_lists_of_one_large_text, ["row"] * 19 + ["line_too_long"]),
    (a_footer_of_very_many_columns, ["Exceeded size limit"]),
    (a_footer_of_another_schema_than_its_statistics, ["ended the process that does so (SIGABRT)"]),
]
MORE_OF_IT: list[Case] = [
    (many_pages_in_a_batch, ["line_too_long"] * 40),
    (one_bit_each, ["line_too_long"]),
    (a_text_in(pa.large_binary()), ["line_too_long"]),
    (texts_in_a_list_of_a_fixed_size, ["line_too_long"]),
    (one_long_list, ["line_too_long"]),
    (more_text_than_2_gib, ["line_too_long"] * 64),
    (large_values_of_a_fixed_size, ["line_too_long"] * 64),
    (beginnings_in_common, ["line_too_long"] * 64),
    (a_text_larger_than_its_footer_says, ["line_too_long"]),
    (a_list_longer_than_its_footer_says, ["line_too_long"]),
    (a_dictionary_that_the_footer_does_not_name, ["line_too_long"] * 64),
    (an_encoding_that_the_footer_does_not_name, ["line_too_long"] * 64),
    (a_header_of_a_length_that_thrift_cuts, ["line_too_long"]),
]


@pytest.mark.parametrize(
    "cases", [COSTLY_PARQUET, pytest.param(MORE_OF_IT, marks=pytest.mark.exhaustive)], ids=["some", "more"]
)
def test_parquet(tmp_path: Path, cases: list[Case]) -> None:
    check(tmp_path, "parquet", cases)


@pytest.mark.parametrize("rows", [2**62, 2**31 + 1])
def test_a_row_group_that_says_it_has_more_rows_than_can_be_counted(tmp_path: Path, rows: int) -> None:
    content = parquet(pa.table({"n": range(10)}))
    size = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).total_byte_size
    fields = b"\x16" + number(size) + b"\x16"
    content = with_a_footer(content, {fields + number(10): fields + number(rows)})
    store = DirectoryStore(tmp_path)

    with pytest.raises(UnreadableInput, match=f"row groups have {rows} rows, and its footer says 10"):
        describe(store, store.put("x.parquet", content), "file:///x.parquet")


def test_a_parquet_footer_of_very_many_bytes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    content = b"PAR1" + bytes(17 * MIB) + (17 * MIB).to_bytes(4, "little") + b"PAR1"

    with pytest.raises(UnreadableInput, match=r"Its footer has [0-9]+ bytes"):
        describe(store, store.put("x.parquet", content), "file:///x.parquet")


def test_a_csv_header_of_very_many_columns(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b",".join(b"%x" % number for number in range(200_000)) + b"\n")

    [result] = in_child(outcomes, str(tmp_path), "x.csv", memory_bytes=100 * MIB)

    assert "names more than 150000 columns" in result


def test_a_csv_record_of_very_many_quoted_lines(tmp_path: Path) -> None:
    """Beyond the limit of a line by half. As a list, these lines alone would take 75 MiB."""
    (tmp_path / "x.csv").write_bytes(b'a,b\n"' + b"\n" * (3 * MIB // 2))

    results = in_child(outcomes, str(tmp_path), "x.csv", MIB, cpu_s=6, memory_bytes=40 * MIB)

    assert set(results) == {"line_too_long"}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.jsonl", b'[{"a":' + b"[" * 16 * MIB, ["unreadable_input"]),
        ("x.jsonl", b'[{"a":"' + b"x" * 16 * MIB + b'"},{}]', ["line_too_long", "row"]),
        ("x.jsonl", b'[{"a":"' + b'\\"' * 8 * MIB + b'"},{}]', ["line_too_long", "row"]),
        ("x.jsonl", b"[{}" + b" ,\n" * 5 * MIB + b"]", ["row"]),
        ("x.jsonl", gzip.compress(b"[{}" + b"\n" * 20 * MIB, mtime=0), ["unreadable_input"]),
        ("x.jsonl", b"\xff\xfe" + b"\n\0" * 8 * MIB, []),
    ],
    ids=["brackets", "a long text", "quotes in a text", "blanks", "a gzip bomb", "UTF-16"],
)
def test_texts_that_are_not_lines_of_utf8(
    tmp_path: Path, name: str, content: bytes, expected: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)

    results = in_child(outcomes, str(tmp_path), name, MIB, cpu_s=6, memory_bytes=40 * MIB)

    assert [outcome.partition(":")[0] for outcome in results] == expected


EMPTY_MEMBER = gzip.compress(b"", mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", b"a,b\n" + b"\n" * 16 * MIB, []),
        ("x.csv", b"a,b\r\n" + b"\r\n" * 8 * MIB, []),
        ("x.jsonl", b"\n" * 16 * MIB, []),
        ("x.jsonl.gz", EMPTY_MEMBER * (8 * MIB // len(EMPTY_MEMBER)), []),
        ("x.jsonl.gz", gzip.compress(b"\n" * 20 * MIB, mtime=0), ["unreadable_input"]),
    ],
    ids=["csv", "csv with carriage returns", "jsonl", "empty gzip members", "a gzip bomb"],
)
def test_lines_without_rows(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    (tmp_path / name).write_bytes(content)

    results = in_child(outcomes, str(tmp_path), name, cpu_s=3, memory_bytes=100 * MIB)

    assert [outcome.partition(":")[0] for outcome in results] == expected
