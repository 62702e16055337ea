"""Sizes of decoded values: never less than a message has of them."""

import pyarrow as pa
import pytest

from nightshift.bulk.rows.columns.pieces import decoded_bytes

TEXTS = pa.array(["x" * 10_000] * 100)
OFFSETS = pa.array(range(101), pa.int32())
IS_NULL = pa.array([True] * 100)
NO_BITS = pa.py_buffer(bytes(13))
HIDDEN = {
    "texts": pa.Array.from_buffers(pa.string(), 100, [NO_BITS, *TEXTS.buffers()[1:]]),
    "lists": pa.ListArray.from_arrays(OFFSETS, TEXTS, mask=IS_NULL),
    "lists of a fixed size": pa.FixedSizeListArray.from_arrays(TEXTS, 1, mask=IS_NULL),
    "numbers": pa.array([None] * 100, pa.list_(pa.float32(), 1000)),
    "structs": pa.StructArray.from_arrays([TEXTS], ["t"], mask=IS_NULL),
    "empty texts": pa.array([[""] * 10_000] * 100),
}


@pytest.mark.parametrize("values", HIDDEN.values(), ids=HIDDEN.keys())
@pytest.mark.parametrize(("start", "count"), [(0, 100), (7, 30), (99, 1)])
def test_what_is_behind_nulls_counts(values: pa.Array, start: int, count: int) -> None:
    part = values.slice(start, count)
    batch = pa.RecordBatch.from_arrays([part], ["c"])

    assert batch.serialize().size - 1000 < decoded_bytes(part) < 3 * batch.serialize().size
