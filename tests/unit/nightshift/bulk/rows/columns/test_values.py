"""Decoded values: numbers of narrow floats, values that cannot be read, rows larger than their object."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightshift.bulk.rows.columns import pieces
from nightshift.bulk.rows.inputs import UnreadableInput
from nightshift.bulk.rows.values import as_id
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import data, file, parquet, rows_of, stream


@pytest.mark.parametrize(
    ("type", "numbers", "read", "ids"),
    [
        (
            np.float32,
            [0.1, 16777216, 123456789, 2147483647, -3e9, 1e22],
            [0.1, 16777216.0, 123456792.0, 2147483648.0, -3000000000.0, 1e22],
            [None, "16777216", "123456792", "2147483648", "-3000000000", None],
        ),
        (np.float16, [0.1, 2049, 50016], [0.1, 2048.0, 50016.0], [None, "2048", "50016"]),
    ],
)
def test_a_whole_narrow_float_is_the_number_in_the_file(
    store: ObjectStore, type: Any, numbers: list[float], read: list[float], ids: list[str | None]
) -> None:
    column = pa.array(np.array(numbers, dtype=type))
    values = [row["c"] for row in data(rows_of(store, stream(pa.table({"c": column}))))]

    assert values == read
    assert [as_id(value, is_typed=True) for value in values] == ids


def test_a_value_that_cannot_be_read_of_a_run_names_its_column(store: ObjectStore) -> None:
    times = pa.array([1000, 1 << 62, 2000], pa.timestamp("s"))  # no date of Python's is so far away
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), times)

    with pytest.raises(UnreadableInput, match="column 'at' has a value of the type run_end_encoded"):
        rows_of(store, file(pa.table({"at": runs})))


def test_rows_with_far_more_bytes_than_their_object_are_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long value that all rows share takes next to nothing in the object."""
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), pa.array(["x" * 1_000_000]))
    content = parquet(pa.table({"c": shared}), compression="zstd")

    with pytest.raises(UnreadableInput, match="more than 1000 times its bytes: put long values"):
        rows_of(store, content, "parquet", line_bytes_max=10_000_000)
    assert (
        len(
            rows_of(
                store, parquet(pa.table({"c": shared.slice(0, 60)})), "parquet", line_bytes_max=10_000_000
            )
        )
        == 60
    )
    assert pieces.DECODED_GRACE_BYTES < 100 * 1_000_000


def test_rows_without_a_value_hide_no_size(store: ObjectStore) -> None:
    places = pa.array([0, *[None] * 999] * 80, pa.int8())
    shared = pa.DictionaryArray.from_arrays(places, pa.array(["x" * 1_000_000]))

    with pytest.raises(UnreadableInput, match="more than 1000 times its bytes"):
        rows_of(
            store, parquet(pa.table({"c": shared}), compression="zstd"), "parquet", line_bytes_max=10_000_000
        )


def test_a_footer_that_claims_fewer_rows_than_its_columns_have_is_refused(store: ObjectStore) -> None:
    content = parquet(
        pa.table({"c": [f"t{n}" for n in range(1000)]}), compression="none", use_dictionary=False
    )
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    place = content.rindex(bytes([0xD0, 0x0F]), footer)  # 1,000 rows of the row group, as Thrift writes them
    claimed = content[:place] + bytes([1800 & 127 | 128, 1800 >> 7]) + content[place + 2 :]

    with pytest.raises(UnreadableInput, match="Its row groups have 900 rows, and its footer says 1000"):
        rows_of(store, claimed, "parquet")
