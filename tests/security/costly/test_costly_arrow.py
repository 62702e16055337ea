"""Arrow objects of a few bytes that stand for very many: reading them stays within bounded memory."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.security.costly.children import MIB, in_child
from tests.security.costly.test_costly_inputs import Case, check, outcomes, parquet

MEMORY_BYTES = 90 * MIB


def arrow(table: pa.Table, batch_rows: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def replaced(content: bytes, before: int, after: int, *, everywhere: bool = False) -> bytes:
    """The last number `before` of 8 bytes, or every one."""
    old, new = (number.to_bytes(8, "little") for number in (before, after))
    assert old in content
    if everywhere:
        return content.replace(old, new)
    place = content.rindex(old)
    return content[:place] + new + content[place + 8 :]


def one_large_text() -> bytes:
    return arrow(pa.table({"n": [1, 2], "t": ["x" * 100_000_000, "y"]}))


def a_packed_text() -> bytes:
    return arrow(pa.table({"t": ["x" * 200_000_000]}), compression="zstd")


def a_packed_text_of_two_gib() -> bytes:
    """It says so: what is in the object is less."""
    content = arrow(pa.table({"t": pa.array(["x" * 3_000_000], pa.large_string())}), compression="zstd")
    return replaced(content, 3_000_000, 2**31)


def a_packed_text_that_says_it_is_short() -> bytes:
    content = arrow(pa.table({"t": ["x" * 3_000_000]}), compression="zstd")
    return replaced(content, 3_000_000, 1_000)


def a_packed_text_that_says_it_is_long() -> bytes:
    content = arrow(pa.table({"t": ["x" * 3_000_000]}), compression="lz4")
    return replaced(content, 3_000_000, 3_100_000)


def a_text_of_more_bytes_than_there_are() -> bytes:
    """A text of 3 GB, by its offsets."""
    content = arrow(pa.table({"t": pa.array(["x" * 777], pa.large_string())}))
    return replaced(content, 777, 3 * 2**30)


def texts_of_less_than_nothing() -> bytes:
    content = arrow(pa.table({"t": pa.array(["x" * 777, "y"], pa.large_string())}))
    return replaced(content, 777, 900)


def a_text_many_times() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), ["x" * 12_000_000])
    return arrow(pa.table({"t": texts}))


def a_large_dictionary() -> bytes:
    texts = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), ["x" * 30_000_000, "y" * 60_000_000])
    return arrow(pa.table({"t": texts}))


def dictionaries_that_grow() -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    schema = pa.schema([("t", pa.dictionary(pa.int32(), pa.string()))])
    texts: list[str] = []
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for number in range(1100):
            texts.append(str(number))
            values = pa.DictionaryArray.from_arrays(pa.array([number], pa.int32()), texts)
            writer.write_batch(pa.record_batch([values], ["t"]))
    return sink.getvalue()


def a_list_of_very_many_nulls() -> bytes:
    content = arrow(pa.table({"v": pa.array([[None] * 777], pa.large_list(pa.null()))}))
    return replaced(content, 777, 2**31, everywhere=True)


def a_list_of_a_fixed_size() -> bytes:
    nulls = pa.FixedSizeListArray.from_arrays(pa.nulls(2**31 - 1), 2**31 - 1)
    return arrow(pa.table({"v": nulls}))


def long_names_in_a_list() -> bytes:
    objects = pa.StructArray.from_arrays([pa.array([False] * 4000)], ["x" * 200_000])
    return arrow(pa.table({"t": pa.ListArray.from_arrays(pa.array([0, 4000], pa.int32()), objects)}))


def one_bit_each() -> bytes:
    return arrow(pa.table({"v": pa.array([[False] * 20_000_000])}))


def very_many_rows() -> bytes:
    return replaced(arrow(pa.table({"n": [1] * 777})), 777, 2**62, everywhere=True)


def more_rows_than_its_buffers_have() -> bytes:
    return replaced(arrow(pa.table({"n": [1] * 777})), 777, 2**30, everywhere=True)


def a_long_header() -> bytes:
    return b"\xff\xff\xff\xff" + (2**31 - 8).to_bytes(4, "little") + b"\0" * 100


def a_body_beyond_the_end() -> bytes:
    content = arrow(pa.table({"n": pa.array([1] * 777, pa.int8())}))
    return replaced(content, 784, 2**62)  # padded to 8 bytes


def very_many_columns() -> bytes:
    return arrow(pa.table({f"column {number}": [1, 2] for number in range(10_000)}))


COSTLY: list[Case] = [
    (one_large_text, ["line_too_long", "row"]),
    (a_packed_text, ["line_too_long"]),
    (a_packed_text_of_two_gib, ["A batch, or a row, takes more than 1073741824 bytes"]),
    (a_packed_text_that_says_it_is_short, ["Destination buffer is too small"]),
    (a_text_of_more_bytes_than_there_are, ["offset for slot 1 out of bounds"]),
    (a_text_many_times, ["line_too_long"] * 64),
    (a_large_dictionary, ["line_too_long"]),
    (a_list_of_a_fixed_size, ["line_too_long"]),
    (very_many_rows, ["impossibly large length"]),
    (a_long_header, [f"Expected to read {2**31 - 8} metadata bytes"]),
    (a_body_beyond_the_end, ["for message body, got 792"]),
    (very_many_columns, ["row", "row"]),
]
MORE_OF_IT: list[Case] = [
    (a_packed_text_that_says_it_is_long, ["expected 3100000 bytes but decompressed 3000000"]),
    (texts_of_less_than_nothing, ["offset for slot 1 out of bounds"]),
    (dictionaries_that_grow, ["row"] * 1100),
    (a_list_of_very_many_nulls, ["line_too_long"]),
    (long_names_in_a_list, ["line_too_long"]),
    (one_bit_each, ["line_too_long"]),
    (more_rows_than_its_buffers_have, ["too small in array"]),
]


@pytest.mark.parametrize(
    "cases", [COSTLY, pytest.param(MORE_OF_IT, marks=pytest.mark.exhaustive)], ids=["some", "more"]
)
def test_arrow(tmp_path: Path, cases: list[Case]) -> None:
    check(tmp_path, "arrow", cases)


def lengths(folder: str, name: str) -> int:
    """The number of rows read, however they are."""
    return len(outcomes(folder, name))


@pytest.mark.parametrize("columns", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_batch_as_large_as_its_object(tmp_path: Path, columns: int) -> None:
    """No more than some of its rows are in memory at a time."""
    texts = pa.array([f"{number:01000}" for number in range(1000)])
    table = pa.table(
        {f"t{number}": pa.concat_arrays([texts] * (150 // columns)) for number in range(columns)}
    )
    (tmp_path / "x.arrow").write_bytes(arrow(table.combine_chunks()))
    assert (tmp_path / "x.arrow").stat().st_size > 140_000_000

    rows = in_child(lengths, str(tmp_path), "x.arrow", cpu_s=20, memory_bytes=100 * MIB)

    assert rows == 150 // columns * 1000


@pytest.mark.parametrize("name", ["x.parquet", pytest.param("x.arrow", marks=pytest.mark.exhaustive)])
def test_nulls_in_place_of_lists_of_a_fixed_size(tmp_path: Path, name: str) -> None:
    """They take as many places as the lists would: 400 MB, of which some are in memory at a time."""
    table = pa.table({"v": pa.array([None] * 1000, pa.list_(pa.float32(), 100_000))})
    content = parquet(table) if name == "x.parquet" else arrow(table, compression="zstd")
    (tmp_path / name).write_bytes(content)
    assert len(content) < 100_000

    assert in_child(lengths, str(tmp_path), name, cpu_s=20, memory_bytes=250 * MIB) == 1000
