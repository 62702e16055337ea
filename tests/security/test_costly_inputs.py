"""Input objects of a few bytes that stand for very many: reading them stays within bounded memory."""

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.jobs import NewShard
from nightshift.objectstore import DirectoryStore
from nightshift.rows.inputs import BadRow, Row, UnreadableInput, iter_rows
from tests.security.children import MIB, in_child

LINE_BYTES_MAX = 4 * MIB
MEMORY_BYTES = 400 * MIB


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def one_text_many_times() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * 12_000_000])
    return parquet(pa.table({"t": texts}), dictionary_pagesize_limit=2**30)


def beginnings_in_common() -> bytes:
    texts = [f"{'x' * 5_000_000}{number}" for number in range(2)]
    table = pa.table({"t": texts * 32})
    return parquet(table, use_dictionary=False, column_encoding={"t": "DELTA_BYTE_ARRAY"})


def one_long_list() -> bytes:
    return parquet(pa.table({"v": pa.array([[7] * 20_000_000], pa.list_(pa.int64()))}))


def one_large_text() -> bytes:
    return parquet(pa.table({"t": ["x" * 200_000_000]}), use_dictionary=False)


def outcomes(folder: str, name: str) -> list[str]:
    """What each row becomes: its error's code, or `row`."""
    shard = NewShard(shard_no=0, uri=name, format=name.partition(".")[2], start=0, end=None)
    rows: Iterator[Row | BadRow] = iter_rows(
        DirectoryStore(Path(folder)), name, shard, line_bytes_max=LINE_BYTES_MAX
    )
    try:
        return [row.code if isinstance(row, BadRow) else "row" for row in rows]
    except UnreadableInput as error:
        return [str(error.code)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (one_text_many_times, ["line_too_long"] * 64),
        (beginnings_in_common, ["unreadable_input"]),
        (one_long_list, ["unreadable_input"]),
        (one_large_text, ["unreadable_input"]),
    ],
)
def test_parquet(tmp_path: Path, make: Callable[[], bytes], expected: list[str]) -> None:
    (tmp_path / "x.parquet").write_bytes(make())

    assert in_child(outcomes, str(tmp_path), "x.parquet", memory_bytes=MEMORY_BYTES) == expected


def test_a_csv_record_of_very_many_quoted_lines(tmp_path: Path) -> None:
    """Beyond the limit of a line by half. As a list, these lines alone would take 300 MiB."""
    (tmp_path / "x.csv").write_bytes(b'a\n"' + b"\n" * 6 * MIB)

    found = in_child(outcomes, str(tmp_path), "x.csv", cpu_s=18, memory_bytes=120 * MIB)

    assert set(found) == {"line_too_long"}


EMPTY_MEMBER = gzip.compress(b"", mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", b"a\n" + b"\n" * 16 * MIB, []),
        ("x.csv", b"a\r\n" + b"\r\n" * 8 * MIB, []),
        ("x.jsonl", b"\n" * 16 * MIB, []),
        ("x.jsonl.gz", EMPTY_MEMBER * (8 * MIB // len(EMPTY_MEMBER)), []),
        ("x.jsonl.gz", gzip.compress(b"\n" * 40 * MIB, mtime=0), ["unreadable_input"]),
    ],
    ids=["csv", "csv with carriage returns", "jsonl", "empty gzip members", "a gzip bomb"],
)
def test_lines_without_rows(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    (tmp_path / name).write_bytes(content)

    assert in_child(outcomes, str(tmp_path), name, cpu_s=3, memory_bytes=100 * MIB) == expected
